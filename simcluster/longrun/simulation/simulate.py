"""Long runs by number, simulated in groups that share their draws."""

from __future__ import annotations

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.compilation import check_compiled
from simcluster.longrun.ending import check_end
from simcluster.longrun.outcome import Outcomes
from simcluster.longrun.run import FATES, LongRun
from simcluster.longrun.simulation.accounts import Accounts
from simcluster.longrun.simulation.draws import Draws
from simcluster.longrun.simulation.one_run import OneRun

_GROUP = 128
"""Runs whose draws are made at once: enough that Python does not matter, few enough for the processor's cache."""


def simulate_runs(run: LongRun, seed: int, count: int, first: int = 0) -> Outcomes:
    """Return the outcomes of the runs ``first`` to ``first + count`` of a seed.

    Raises InputError for a run that would hardly ever end.
    """
    check_compiled()
    check_end(run)
    draws, accounts = Draws(seed), Accounts(run, count)
    one_run, group, end = OneRun(run, draws, accounts), _GROUP, first + count
    draws.prepare()
    for number in range(first, end):
        if number >= draws.first + draws.count:
            draws.start_group(number, min(group, end - number))
        together = draws.count
        draws.choose(number)
        one_run.simulate(number - first)
        if draws.count < together:  # its draws took too much room for a group of that size
            group = max(1, together // 4)
    return _outcomes(run, count, accounts)


def _outcomes(run: LongRun, count: int, accounts: Accounts) -> Outcomes:
    """Return the table of what came of the runs."""
    wall, at, fates, parts, strikes, outages = accounts.columns()
    weekly = np.full((count, max(map(len, accounts.weeks), default=0)), np.nan)
    for row, weeks in zip(weekly, accounts.weeks, strict=True):
        row[: len(weeks)] = weeks
    there = ~np.isnan(weekly)
    weekly[there] = _kept(run, weekly[there])
    return Outcomes(
        run,
        wall,
        at,
        _kept(run, at),
        fates.reshape(count, len(FATES), -1),
        parts.reshape(count, len(run.restart)),
        strikes.reshape(count, -1)[:, : len(run.causes)].astype(np.int64),
        outages.reshape(count, -1).astype(np.int64),
        weekly,
    )


def _kept(run: LongRun, at: Floats) -> Floats:
    """Return the steps that are kept there on the nominal clock."""
    return np.minimum(run.pattern.spent("steps", np.minimum(at, run.goal_at)), run.goal)
