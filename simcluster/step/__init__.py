"""Simulation of a scenario's step: planning, folding of equal ranks, and choice of an engine."""
