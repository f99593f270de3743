"""Command-line entry points of long runs and budgets."""
