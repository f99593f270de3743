"""Scaling questions: the best model for a budget, the training cost to reach a loss, and the number of GPUs."""
