"""What was played, in numbers: functions of spans, the metrics, the result and its file."""
