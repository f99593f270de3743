"""Recorded and exchanged traces of other tools: read, replayed, written."""
