"""Calibration: measure a GPU's kernels, then fit the device model's constants to the measured times.

Measuring needs PyTorch and none of simcluster's other libraries, so that it runs where the GPU is; fitting needs scipy
and runs anywhere.
"""
