"""A scenario's step: planned, prepared, played."""
