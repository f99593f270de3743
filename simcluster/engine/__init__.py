"""The compiled engine: makes tables of a job's ops, and simulates them in one loop over instants."""
