"""Compiled simulation of long runs; its results equal those of ``longrun/events`` to within 10 ns per run."""

from simcluster.longrun.simulation.simulate import simulate_runs

__all__ = ["simulate_runs"]
