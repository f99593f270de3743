"""The compiled simulation of long runs: one run or thousands, each equal to that of ``events``."""

from simcluster.longrun.simulation.simulate import simulate_runs

__all__ = ["simulate_runs"]
