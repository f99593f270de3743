"""Counts of a transformer model: parameters, FLOPs, kernels, tensors, bytes of state. Independent of devices."""
