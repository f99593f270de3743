"""Scenario: an immutable, validated description of a training job, its rules, and its conversion for planning."""
