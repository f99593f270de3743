"""Commands that validate, fit and calibrate the simulator."""
