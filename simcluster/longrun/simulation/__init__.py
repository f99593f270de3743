"""Compiled simulation of long runs, equal to ``events`` up to rounding (below 10 ns of a run)."""

from simcluster.longrun.simulation.simulate import simulate_runs

__all__ = ["simulate_runs"]
