"""What-if studies of a step: stragglers and mitigations, random durations, free ops, sensitivities."""
