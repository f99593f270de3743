"""Accelerator: which ranks and links of a job are equal, as an equitable partition of its communication graph."""
