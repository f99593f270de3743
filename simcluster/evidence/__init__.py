"""How far to trust it: validation against measured runs, fitted constants, calibration on a GPU."""
