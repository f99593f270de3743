"""Simulation of one training step of a scenario: planning, merging of equivalent ranks, and choice of engine."""
