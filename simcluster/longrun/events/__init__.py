"""The plain meaning of a run: SimPy processes for the job, for every cause and for every repair, and a log of all."""

from simcluster.longrun.events.job import simulate_with_log

__all__ = ["simulate_with_log"]
