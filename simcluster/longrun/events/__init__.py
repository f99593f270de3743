"""Reference simulation of a run in SimPy, with a log: processes for the job, each cause, and each repair."""

from simcluster.longrun.events.job import simulate_with_log

__all__ = ["simulate_with_log"]
