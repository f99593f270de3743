"""A scenario's step: planned, folded, simulated."""
