"""Durations of kernels on a GPU and of launches on its host: roofline, interference, software."""
