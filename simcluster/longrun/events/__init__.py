"""Reference simulation of long runs in SimPy, with an event log."""

from simcluster.longrun.events.job import simulate_with_log

__all__ = ["simulate_with_log"]
