"""Benchmarks of a collective, of a cluster's bandwidths, and of a pipeline schedule with fixed durations."""
