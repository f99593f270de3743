"""Calibration: measure a GPU's kernels, and fit the constants of the device model to the measurements.

Measuring needs PyTorch and none of simcluster's other libraries, so that it runs where the GPU is; fitting needs scipy
and runs anywhere.
"""
