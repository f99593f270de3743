"""Estimates from counts alone: memory, time and cost of a training run, and the loss it reaches. No simulation."""
