"""Plots of long training runs, of compared policies, and of compute budgets."""
