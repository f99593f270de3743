"""Plots of long runs, policies and budgets."""
