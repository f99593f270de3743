"""Import of PyTorch modules, by tracing forward and backward without a GPU and without weights."""
