"""Sweeps: simulation of many variants of a scenario; each variant's result is stored as soon as it is finished."""
