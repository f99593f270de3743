"""Accuracy of the simulator: validation against measured runs, fitted constants, and calibration on a GPU."""
