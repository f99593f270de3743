"""Scenarios drawn from what is declared, and the comparison of all engines on them."""
