"""Foundations: errors, units, the simulation clock's grid, time profiles, stores, processes."""
