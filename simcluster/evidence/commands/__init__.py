"""Commands that validate, fit and calibrate."""
