"""Measurements of a simulated run: functions of spans, the metrics, the result and its file."""
