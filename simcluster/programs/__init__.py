"""Accelerator: the ops of a job in columns, where a chain of ops is one event (collapse, expand)."""
