"""Simulation of training runs that last weeks (failures, restarts, cost), and loss laws for compute budgets."""
