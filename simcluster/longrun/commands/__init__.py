"""Command-line entry points for the commands about long runs and training budgets."""
