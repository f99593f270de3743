"""Sweeps: many variants of a scenario, each result durable as soon as it is there."""
