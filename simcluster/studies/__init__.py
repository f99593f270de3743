"""Studies that simulate many training steps: what-if, sweeps, layout search, several jobs on one cluster."""
