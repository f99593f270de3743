"""From model, rank grid and schedule to the ops of every stage, on lanes, with their memory.  Pure."""
