"""From model, plan and schedule to what every stage does: ops on lanes, with their memory.  Pure."""
