"""Preparation of a launch: checklist of a step and its long run, a first scenario, and a small version to try."""
