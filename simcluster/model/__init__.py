"""A transformer in numbers: parameters, FLOP, kernels, tensors, bytes of state.  Pure; knows no device."""
