"""What-if studies, which take more than one run: stragglers, mitigations, random durations, free ops."""
