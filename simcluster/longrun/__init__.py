"""Runs of weeks: what fails and what that costs, in SimPy and compiled; knows seconds of a step, no scenario."""
