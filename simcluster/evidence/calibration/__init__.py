"""Calibration: measurement of a GPU's kernels, and a fit of the device model's constants to the measurements.

Measuring needs PyTorch and none of simcluster's other libraries, so that it runs where the GPU is; fitting needs scipy
and runs anywhere.
"""
