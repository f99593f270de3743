"""Device-independent sizes of a transformer model: parameters, FLOPs, kernels, tensors, bytes of model state."""
