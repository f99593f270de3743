"""What every package stands on: errors, units, the clock's grid, profiles of time, stores and processes."""
