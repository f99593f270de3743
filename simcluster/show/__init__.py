"""Figures, printed text and HTML reports of simulation results."""
