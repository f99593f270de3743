"""Launch preparation: the checklist of a step and its long run, a first scenario, and a small version to try."""
