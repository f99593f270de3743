"""Accuracy of the simulator: validation against measurements, constants fitted to them, and GPU calibration."""
