"""Advice on lemons: after how many failures a machine of a bad batch should be replaced for good."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.errors import InputError
from simcluster.base.units import DAY
from simcluster.longrun.run import FailureMode, LongRun
from simcluster.longrun.studies.advised import Advice, AdviceLine, AdviceMark, AdvicePicture, percent, points
from simcluster.longrun.studies.in_theory import interruption_of
from simcluster.longrun.studies.policies import PolicyBench, half_width, paired, share_of, table_of

if TYPE_CHECKING:
    import pandas as pd

_FAILURES = (1, 2, 3, 4, 6)
_WINDOW = 7 * DAY


def lemons(bench: PolicyBench) -> Advice:
    """What it gains to retire machines of a bad batch after so many failures, ever or within a window (that of the
    scenario, or a week), against never; and how many healthy ones the same rule would retire by chance."""
    run = bench.with_section()
    bad = [cause for cause in run.causes if cause.bad is not None and cause.bad.machines]
    if not bad:
        raise InputError(
            "run.failures: no machine is worse than others, so none is a lemon; give a failure a bad batch, as in "
            "bad: {share: 2%, times: 20, cured: 30%}"
        )
    windows = [cause.bad.window for cause in bad if cause.bad is not None and math.isfinite(cause.bad.window)]
    window = windows[0] if windows else _WINDOW
    table = _over_failures(bench, run, window)
    row, way = _chosen(table)
    first, never = table.iloc[0], float(table["never"].iloc[0])
    days = f"within {window / DAY:,.3g} d"
    words = f"{int(row['failures'])} failures {'ever' if way == 'ever' else days}"
    known = "" if abs(row[way]) > row[f"{way}_half_width"] else " (too close to say with so few runs)"
    sentence = (
        f"To retire a machine after {words} gains {points(row[way], row[f'{way}_half_width'])} of goodput{known} on "
        f"{percent(never)} without, and takes {row[f'healthy_{way}']:,.2g} healthy machines a run along by chance; at "
        f"the first failure it would be {points(first['ever'], first['ever_half_width'])} and "
        f"{first['healthy_ever']:,.2g} machines."
    )
    lines = (
        AdviceLine("ever", "failures ever", wide="ever_half_width"),
        AdviceLine("closed_form", "failures ever, first order", theory=True),
        AdviceLine("window", f"failures {days}", wide="window_half_width"),
    )
    mark = AdviceMark(row["failures"], row[way], words)
    picture = AdvicePicture("failures", "failures after which a machine is retired", "goodput gained, points", lines,
                            (mark,))  # fmt: skip
    notes = (
        "the closed form counts each failure that does not come with its outage and half an interval, to first order; "
        "it leaves out the wait for machines that are short",
        "healthy machines that a rule retires are counted by closed form (failures of each a Poisson process), and "
        "cost nothing here",
        "a run has no more bad machines than it begins with: a new machine is as good as any",
    )
    return Advice("lemons", bench.scenario.name, sentence, table, picture, bench.played, notes)


def _chosen(table: pd.DataFrame) -> tuple[dict[str, float], str]:
    """The rule that gains most of those that retire less than one healthy machine a run, or else the fewest."""
    rows = [{str(name): float(value) for name, value in row.items()} for row in table.to_dict("records")]
    ways = [(row, way) for row in rows for way in ("window", "ever")]
    few = [each for each in ways if each[0][f"healthy_{each[1]}"] < 1]
    if few:
        return max(few, key=lambda each: each[0][each[1]])
    return min(ways, key=lambda each: each[0][f"healthy_{each[1]}"])


def _over_failures(bench: PolicyBench, run: LongRun, window: float) -> pd.DataFrame:
    ways = {"ever": math.inf, "window": window}
    rules = {(count, way): _retiring(run, count, within) for count in _FAILURES for way, within in ways.items()}
    ended = bench.play_all({(0, ""): _retiring(run, 0, math.inf), **rules})
    before, wall = share_of(ended[0, ""]), float(ended[0, ""].wall.mean())
    each = interruption_of(run).whole + run.pattern.period / run.pattern.cycles / 2
    busy = wall * float(before.mean())
    rows = []
    for failures in _FAILURES:
        row: dict[str, Any] = {"failures": failures, "never": float(before.mean())}
        row["never_half_width"] = half_width(before)
        saved = [lemon_failures(run, cause, math.inf, busy) - lemon_failures(run, cause, failures, busy)
                 for cause in run.causes]  # fmt: skip
        row["closed_form"] = sum(saved) * each / wall
        for way, within in ways.items():
            after = ended[failures, way]
            gap = paired(before, share_of(after))
            row |= {way: gap.mean, f"{way}_half_width": gap.half_width, f"failures_{way}": _failures(run, after)}
            row[f"healthy_{way}"] = sum(healthy_retired(run, cause, failures, within, wall) for cause in run.causes)
        rows.append(row)
    return table_of(rows)


def _failures(run: LongRun, outcomes: Any) -> float:
    """Of causes that have a bad batch, in a run."""
    chosen = [number for number, cause in enumerate(run.causes) if cause.bad is not None]
    return float(outcomes.strikes[:, chosen].sum(axis=1).mean())


def _retiring(run: LongRun, failures: float, window: float) -> LongRun:
    """The run with all bad batches retired so."""
    causes = [
        cause if cause.bad is None else replace(cause, bad=replace(cause.bad, retire=failures, window=window))
        for cause in run.causes
    ]
    return replace(run, causes=tuple(causes))


def lemon_failures(run: LongRun, cause: FailureMode, limit: float, seconds: float) -> float:
    """Failures of the bad machines of a cause in so many seconds, beyond those of healthy ones in their places.

    A lemon's k-th failure comes in that time with the probability that a Poisson count is k or more, and if none of the
    repairs before has cured it; those after ``limit`` are another machine's.
    """
    from scipy.special import gammainc

    if cause.bad is None:
        return 0.0
    mean = cause.rate / run.machines * cause.bad.times * seconds
    count = np.arange(1, min(limit, math.ceil(mean + 10 * math.sqrt(mean) + 20)) + 1)
    each = float(((1 - cause.bad.cured) ** (count - 1) * gammainc(count, mean)).sum())
    return cause.bad.machines * each * (1 - 1 / cause.bad.times)


def healthy_retired(run: LongRun, cause: FailureMode, failures: int, window: float, seconds: float) -> float:
    """Healthy machines that come to so many failures of a cause within a window by chance, in so many seconds.

    Failures of a machine are a Poisson process of rate r: 1 - P(fewer than n in all) of them ever; within a window, to
    first order, r T times the probability of n - 1 or more in the window before one.
    """
    from scipy.special import gammainc

    if cause.bad is None:
        return 0.0
    rate, count = cause.rate / run.machines, run.machines - cause.bad.machines
    ever = float(gammainc(failures, rate * seconds))
    if math.isinf(window) or failures == 1:
        return count * ever
    again = float(gammainc(failures - 1, rate * min(window, seconds)))
    return count * min(ever, -float(np.expm1(-rate * seconds * again)))
