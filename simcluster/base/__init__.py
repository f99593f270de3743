"""Foundations of the package: errors, units, rounding of simulated times, row storage, worker processes."""
