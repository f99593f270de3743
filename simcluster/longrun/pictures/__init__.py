"""Plots of long training runs, policy comparisons, and compute budgets."""
