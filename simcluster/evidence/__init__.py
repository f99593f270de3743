"""How far to trust it: validation against measured runs, fits of constants, calibration on a GPU."""
