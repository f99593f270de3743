"""Accuracy of the simulator: validation against measured runs, fitted constants, calibration on a GPU."""
