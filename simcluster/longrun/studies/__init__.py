"""Runs of weeks: the states of a cluster as the step simulator plays them, and what comes of a run in them."""
