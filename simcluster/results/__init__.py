"""Measurements of a simulated run: metrics, time breakdown, overlap, memory, and the result file."""
