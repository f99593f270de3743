"""Compiled simulation of long runs, one or thousands: what ``events`` gives but for rounding, below 10 ns of a run."""

from simcluster.longrun.simulation.simulate import simulate_runs

__all__ = ["simulate_runs"]
