"""Answers to scaling questions: best model for a budget, cost of reaching a loss, number of GPUs."""
