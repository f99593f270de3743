"""Launch preparation: checklist of a scenario, first scenario for a model, and small version that fits one node."""
