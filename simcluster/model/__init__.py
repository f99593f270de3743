"""What a transformer is, in numbers: parameters, FLOPs, kernels, tensors, bytes of state.  Pure; knows no device."""
