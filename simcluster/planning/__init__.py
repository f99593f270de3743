"""Planning: from model, rank grid and pipeline schedule to the ops of every stage, with their memory. Pure."""
