"""Comparison of a recorded trace with its simulation."""
