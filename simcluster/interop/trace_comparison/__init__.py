"""One's own trace beside the simulation: the same step as recorded and as played, and where the two differ."""
