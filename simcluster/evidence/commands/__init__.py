"""Entry points of the commands that validate, fit and calibrate the simulator."""
