"""What every package stands on: errors, units, the clock's grid, profiles over time, stores, processes."""
