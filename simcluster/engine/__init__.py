"""Compiled engine: converts a job's ops to tables and simulates them in one event loop."""
