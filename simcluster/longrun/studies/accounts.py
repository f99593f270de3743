"""What became of the seconds of many runs, by fate, cause and week: outcomes in, tables out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.units import DAY, YEAR
from simcluster.longrun import closed_forms
from simcluster.longrun.ending import restart_seconds, stop_rate
from simcluster.longrun.outcome import Outcomes, names_of
from simcluster.longrun.run import FATES, LongRun
from simcluster.results.distribution import half_width

if TYPE_CHECKING:
    import pandas as pd

_LONGEST = 100 * YEAR
_MOST_EACH, _MOST = 1e5, 2e8  # failures in a run, and in all runs: minutes
_SOONEST = 1e-3


def check_size(run: LongRun, played: int) -> None:
    """InputError for runs that are longer, or meet more, than can be played."""
    rate, (down, exposed) = stop_rate(run), restart_seconds(run)
    wall = run.until
    if math.isinf(wall):  # and it ends: ``check_end``
        work = run.pattern.steps * run.pattern.step
        wall = run.goal_at / closed_forms.efficiency(work, run.pattern.storage.stall, exposed, down, rate)
    if wall > _LONGEST:
        raise InputError(
            f"run: it takes about {wall / YEAR:.3g} years; at most {_LONGEST / YEAR:.0f} are played: "
            "ask for fewer days, steps or tokens"
        )
    rates = sum(cause.rate for cause in run.causes)
    planned = 0.0 if run.maintenance is None else 1 / max(run.maintenance.every, _SOONEST)
    each = wall * (rates / (1 + rate * down) + planned)  # while a job stands nothing strikes it
    if not (each <= _MOST_EACH and each * played <= _MOST):
        raise InputError(
            f"run: {played:,} runs of about {each:.3g} failures and interruptions each are more than can be played; "
            "give fewer runs (run.played), fewer days, or rarer failures"
        )


def interval(values: Floats) -> tuple[float, float, float]:
    """(mean, low, high): the 95 % interval of the mean, Student's; of a single run it is the mean alone."""
    mean = float(values.mean())
    half = half_width(values) if len(values) > 1 else 0.0
    return mean, mean - half, mean + half


def numbers(outcomes: Outcomes, shares: Mapping[str, Floats], more: Mapping[str, Floats]) -> pd.DataFrame:
    """Of the runs: mean, low, high, p5, p50, p95; indexed by what; ``more`` has a value a run as well."""
    import pandas as pd

    stops = [number for number, cause in enumerate(outcomes.run.causes) if cause.stops]
    measured = {
        "days": outcomes.wall / DAY,
        "steps": outcomes.steps,
        "goodput": shares["productive"],
        "failures": outcomes.strikes[:, stops].sum(axis=1).astype(np.float64),
        "strikes": outcomes.strikes.sum(axis=1).astype(np.float64),
        "outages": outcomes.outages.sum(axis=1).astype(np.float64),
        **more,
    }
    rows = [[*interval(values), *np.quantile(values, (0.05, 0.5, 0.95))] for values in measured.values()]
    index = pd.Index(list(measured), name="what")
    return pd.DataFrame(rows, index=index, columns=["mean", "low", "high", "p5", "p50", "p95"])


def column(names: Iterable[Any], values: Mapping[str, float] | None) -> list[float]:
    """A table's column by the names of its rows; nan where there are no values."""
    return [math.nan if values is None else values[str(name)] for name in names]


def breakdown(outcomes: Outcomes, shares: Mapping[str, Floats]) -> pd.DataFrame:
    """By fate: mean_s, share, low, high, p10, p90."""
    import pandas as pd

    spent = outcomes.spent()
    rows = [
        [float(spent[fate].mean()), *interval(share), *np.quantile(share, (0.1, 0.9))] for fate, share in shares.items()
    ]
    columns = ["mean_s", "share", "low", "high", "p10", "p90"]
    return pd.DataFrame(rows, index=pd.Index(list(shares), name="fate"), columns=columns)


def causes(outcomes: Outcomes) -> pd.DataFrame:
    """By cause, those that took most first: strikes, outages, seconds by fate, all of them, share of the wall."""
    import pandas as pd

    names = names_of(outcomes.run)
    seconds = outcomes.fates.mean(axis=0)  # [fate, cause]
    strikes = np.zeros(len(names))
    strikes[: outcomes.strikes.shape[1]] = outcomes.strikes.mean(axis=0)
    table = {
        "strikes": strikes,
        "outages": outcomes.outages.mean(axis=0),
        **{f"{fate}_s": seconds[number] for number, fate in enumerate(FATES)},
        "all_s": seconds.sum(axis=0),
        "share": seconds.sum(axis=0) / outcomes.wall.mean(),
    }
    frame = pd.DataFrame(table, index=pd.Index(names, name="cause"))
    return frame.sort_values("all_s", ascending=False, kind="stable")


def parts(outcomes: Outcomes) -> pd.DataFrame:
    """By part of a restart: mean_s of a run, each_s of an outage."""
    import pandas as pd

    names = [part.name for part in outcomes.run.restart]
    seconds = outcomes.parts.mean(axis=0)
    count = max(float(outcomes.outages.sum(axis=1).mean()), 1e-12)
    return pd.DataFrame({"mean_s": seconds, "each_s": seconds / count}, index=pd.Index(names, name="part"))


def weeks(outcomes: Outcomes) -> pd.DataFrame:
    """By week: goodput, p10, p90, runs; the last week of a run is as long as the run still goes on in it."""
    import pandas as pd

    rows = [
        [number, float(good.mean()), *np.quantile(good, (0.1, 0.9)), len(good)]
        for number, good in enumerate(_by_week(outcomes), 1)
        if len(good)
    ]
    frame = pd.DataFrame(rows, columns=["week", "goodput", "p10", "p90", "runs"])
    return frame.astype({"week": int, "runs": int})


def _by_week(outcomes: Outcomes) -> Iterator[Floats]:
    """The goodput of each run that began a week, week by week."""
    week, step = outcomes.run.week, outcomes.run.pattern.step
    before = np.zeros(len(outcomes.wall))
    for number in range(outcomes.weekly.shape[1] + 1):
        ends = number < outcomes.weekly.shape[1]
        at_end = outcomes.weekly[:, number] if ends else np.full(len(before), np.nan)
        last = np.isnan(at_end)
        kept = np.where(last, outcomes.steps, at_end)
        length = np.where(last, outcomes.wall - number * week, week)
        begun = length > 1e-6 * week
        yield (kept - before)[begun] * step / length[begun]
        before = np.where(begun, kept, before)
