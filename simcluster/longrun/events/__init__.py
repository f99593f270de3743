"""Reference implementation of the long-run simulation in SimPy, which also writes an event log."""

from simcluster.longrun.events.job_processes import simulate_with_log

__all__ = ["simulate_with_log"]
