"""From a budget to a loss: the best model for it, what a loss costs on a cluster, and how many GPUs it pays to use."""
