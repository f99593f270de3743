"""Planning: converts model, rank grid and pipeline schedule to each stage's ops and memory. No side effects."""
