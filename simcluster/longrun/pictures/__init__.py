"""Pictures of long runs, policies and budgets."""
