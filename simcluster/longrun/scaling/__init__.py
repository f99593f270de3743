"""Scaling questions: the best model for a budget, the cost of a loss on a cluster, and how many GPUs pay off."""
