"""Commands of long runs and budgets."""
