"""Measure a GPU, and fit constants to what was measured: kernels on one device, and the steps of validation studies.

Measuring needs PyTorch and nothing else of simcluster's libraries, so that it runs where the GPU is; fitting needs
scipy, and runs anywhere.
"""
