"""Sweeps: many variants of a scenario, each row stored as soon as it is finished."""
