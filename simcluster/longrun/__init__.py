"""Training runs that last weeks (failures, restarts, cost), and the models and losses that a budget buys."""
