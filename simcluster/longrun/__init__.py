"""Runs of weeks, and budgets: what fails, what that costs, and the model and loss that a budget buys."""
