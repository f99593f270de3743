"""Simulation of many long runs by number, in groups whose random numbers are drawn together."""

from __future__ import annotations

from simcluster.base.compilation import check_compiled
from simcluster.longrun.ending import check_run_ends
from simcluster.longrun.run import LongRun, Outcomes
from simcluster.longrun.simulation.accounts import Accounts
from simcluster.longrun.simulation.draws import Draws
from simcluster.longrun.simulation.one_run import OneRun

_GROUP = 128
"""Runs whose draws are made at once: enough that Python does not matter, few enough for the processor's cache."""


def simulate_runs(run: LongRun, seed: int, count: int, first: int = 0) -> Outcomes:
    """Simulate ``count`` runs of a seed, numbered from ``first``; InputError if they never end."""
    check_compiled()
    check_run_ends(run)
    draws, accounts = Draws(seed), Accounts(run, count)
    one_run, group, end = OneRun(run, draws, accounts), _GROUP, first + count
    for number in range(first, end):
        if number >= draws.first + draws.count:
            draws.start_group(number, min(group, end - number))
        together = draws.count
        draws.place = number - draws.first
        one_run.simulate(number - first)
        if draws.count < together:  # its draws took too much room for a group of that size
            group = max(1, together // 4)
    return accounts.outcomes()
