"""Benchmarks of one part of a job: a collective, a cluster, or a schedule with given durations."""
