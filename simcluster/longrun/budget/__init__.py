"""Estimates without simulation: memory, time, cost and loss of a training run, from parameter and token counts."""
