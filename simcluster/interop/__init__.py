"""Recorded and exchanged traces: read, replayed, written."""
