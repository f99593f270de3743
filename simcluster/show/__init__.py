"""Figures and printed text of simulation results."""
