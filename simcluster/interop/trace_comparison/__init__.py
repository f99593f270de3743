"""Comparison of a recorded trace with its simulation: the same step on both sides, and the differences."""
