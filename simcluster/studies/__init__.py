"""Studies that simulate many steps: comparisons, sweeps, search for layouts, and several jobs on one cluster."""
