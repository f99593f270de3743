"""What-if studies of a training step: stragglers, mitigations, random durations, free ops, sensitivities."""
