"""Studies that simulate many steps: what-if, sweeps, search for layouts, several jobs on one cluster."""
