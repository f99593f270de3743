"""Advice on machines: how many spares, and what more reliable parts are worth."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.longrun.outcome import Outcomes
from simcluster.longrun.run import LongRun, Spares
from simcluster.longrun.studies.advised import (
    Advice,
    AdviceLine,
    AdviceMark,
    AdvicePicture,
    duration,
    left_out_note,
    percent,
    points,
    within,
)
from simcluster.longrun.studies.build import section_of
from simcluster.longrun.studies.in_theory import (
    Repairs,
    efficiency_of,
    interruption_of,
    left_out,
    ready_of,
    short_share,
)
from simcluster.longrun.studies.policies import PolicyBench, half_width, paired, share_of, table_of

if TYPE_CHECKING:
    import pandas as pd

SHORT = 0.001
"""The share of time for which a job may be short of machines: the fewest spares are those for less."""
_COUNTS = 9
_MOST = 2000
_RELIABLE = (1.0, 2.0, 5.0, 10.0)
_MORE_GPUS = 1.1


def spares(bench: PolicyBench) -> Advice:
    """Return how many spare nodes to keep: time short of nodes and goodput over counts, and the fewest for ``SHORT``.

    The counts are of the kind that the scenario has most of (hot, if none).  Erlang B is shown where it holds.
    """
    run = replace(bench.with_section(), short=())
    repairs = Repairs.of(run)
    if not repairs.rate:
        raise InputError(
            "run.failures: no failure takes a machine away, so no spare is ever needed; say how long one is in repair, "
            "as in repair: 2 d"
        )
    expected = _fewest(run)
    own = None if run.spares.unlimited else run.spares.count
    counts = {*(round(each) for each in np.linspace(0, 1.3 * expected + 3, _COUNTS)), *([] if own is None else [own])}
    played_at = bench.play_all({count: _with_spares(run, count) for count in sorted(counts)})
    fewest = _least(bench, run, repairs, played_at)
    table = _over_counts(run, repairs, played_at)
    row = table[table["spares"] == fewest].iloc[0]
    by_erlang = f"; by Erlang B {expected}" if repairs.single else ""
    words = (
        ""
        if own is None
        else f"; the scenario's own {own} leave{'s' * (own == 1)} it short for {percent(_short(table, own), 3)}"
    )
    sentence = (
        f"{fewest} spare{'s are' if fewest != 1 else ' is'} the fewest with which the job is short of machines for "
        f"less than {percent(SHORT, 1)} of the time ({percent(row['short'], 3)}{by_erlang}), for a "
        f"goodput of {percent(row['goodput'])}{words}."
    )
    marks = [AdviceMark(fewest, float(row["short"]), f"fewest below {percent(SHORT, 1)}: {fewest}")]
    if own is not None and own != fewest:
        marks.append(AdviceMark(own, _short(table, own), "the scenario's own", chosen=False))
    lines = AdviceLine("short", "simulated", wide="short_half_width"), AdviceLine("erlang_b", "Erlang B", theory=True)
    picture = AdvicePicture(
        "spares", "spare machines", "short of machines, % of the time", lines, tuple(marks), log="y"
    )
    holds = "Erlang B is the share in a long run"
    if not repairs.single:
        holds = "Erlang B does not hold where a failure takes several nodes, and is not shown"
    notes = (f"runs begin with all spares there; {holds}",)
    return Advice("spares", bench.scenario.name, sentence, table, picture, bench.played, notes)


def _short(table: pd.DataFrame, count: int) -> float:
    return float(table.loc[table["spares"] == count, "short"].iloc[0])


def _with_spares(run: LongRun, count: int) -> LongRun:
    kept = run.spares
    most = int(np.argmax([kept.hot, kept.warm, kept.cold]))
    hot, warm, cold = (count if kind == most else 0 for kind in range(3))
    return replace(run, spares=Spares(hot, warm, cold, kept.ready, kept.crews))


def _fewest(run: LongRun) -> int:
    for count in range(_MOST):
        if short_share(run, count) < SHORT:
            return count
    raise InputError(
        f"run.spares: with {_MOST:,} the job is still short of machines for {percent(short_share(run, _MOST))} of the "
        f"time: what fails is not repaired as fast; give more crews ({run.spares.crews}) or shorter repairs"
    )


def short_of_machines(run: LongRun, causes: tuple[int, ...], outcomes: Outcomes) -> Floats:
    """The share of each run for which it is short of machines: what it waits but for making spares ready."""
    made = outcomes.outages[:, list(causes)].sum(axis=1) * ready_of(run, 0)
    return np.asarray(np.maximum(0.0, share_of(outcomes, "waiting") - made / outcomes.wall))


def _least(bench: PolicyBench, run: LongRun, repairs: Repairs, played_at: dict[int, Outcomes]) -> int:
    """The fewest spares for less than ``SHORT``, by halving between counts that are played; those are added."""

    def enough(count: int) -> bool:
        if count not in played_at:
            played_at[count] = bench.play(_with_spares(run, count))
        return float(short_of_machines(_with_spares(run, count), repairs.causes, played_at[count]).mean()) < SHORT

    high = max(played_at)
    while not enough(high):
        high = 2 * high + 1
    low = -1
    while high - low > 1:
        between = [count for count in played_at if low < count < high]
        middle = between[len(between) // 2] if between else (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _over_counts(run: LongRun, repairs: Repairs, played_at: dict[int, Outcomes]) -> pd.DataFrame:
    rows = []
    for count, outcomes in sorted(played_at.items()):
        short = short_of_machines(_with_spares(run, count), repairs.causes, outcomes)
        goodput = share_of(outcomes)
        rows.append(
            {
                "spares": count,
                "short": float(short.mean()),
                "short_half_width": half_width(short),
                "erlang_b": short_share(run, count) if repairs.single else math.nan,
                "goodput": float(goodput.mean()),
                "half_width": half_width(goodput),
            }
        )
    return table_of(rows)


def nine(bench: PolicyBench) -> Advice:
    """What one more nine of part reliability is worth in GPUs: goodput with everything failing half, a fifth and a
    tenth as often, and the GPUs that would have to be bought for as much.

    A GPU more fails as well: ``gpus`` counts those bought at what one more adds (``marginal``, from the goodput at 1.1
    times the failures), ``gpus_plain`` at a whole one each.  An ``auto`` interval is chosen anew.
    """
    failures = section_of(bench.scenario).failures

    def with_rate(times: float) -> LongRun:
        return bench.with_section(failures=failures.model_copy(update={"times": failures.times * times}))

    runs = {times: with_rate(1 / times) for times in _RELIABLE}
    if not interruption_of(runs[1.0]).rate:
        raise InputError("run.failures: nothing stops the job, so nothing could fail less often; name some failures")
    goodput = bench.goodputs({**runs, 1 / _MORE_GPUS: with_rate(_MORE_GPUS)})
    now, more = goodput[1.0], goodput[1 / _MORE_GPUS]
    marginal = 1 + math.log(float(more.mean() / now.mean())) / math.log(_MORE_GPUS)
    table = _over_reliability(bench.scenario.gpus, runs, goodput, marginal)
    last = table.iloc[-1]
    value = f"{within(last['gpus'], last['gpus_half_width'], 1)} GPUs"
    sentence = (
        f"One more nine (everything fails a tenth as often) is worth {value} more on {bench.scenario.gpus:,}: "
        f"{points(last['gain'], last['gain_half_width'])} of goodput, where one more GPU adds {marginal:.3f} of one; "
        f"an interruption comes every {duration(1 / interruption_of(runs[1.0]).rate)} of training now."
    )
    lines = AdviceLine("goodput", "simulated", wide="half_width"), AdviceLine("closed_form", "closed form", theory=True)
    mark = AdviceMark(10.0, float(last["goodput"]), f"one more nine: worth {value}")
    picture = AdvicePicture("times", "parts last so many times as long", "goodput, %", lines, (mark,), log="x")
    notes = left_out_note(left_out(runs[1.0]))
    return Advice("nine", bench.scenario.name, sentence, table, picture, bench.played, notes)


def _over_reliability(
    gpus: int, runs: dict[float, LongRun], goodput: dict[float, Floats], marginal: float
) -> pd.DataFrame:
    now, rows = goodput[1.0], []
    for times, run in runs.items():
        gap = paired(now, goodput[times])
        worth = gpus / float(now.mean())
        rows.append(
            {
                "times": times,
                "goodput": float(goodput[times].mean()),
                "half_width": half_width(goodput[times]),
                "closed_form": efficiency_of(run),
                "gain": gap.mean,
                "gain_half_width": gap.half_width,
                "gpus_plain": gap.mean * worth,
                "gpus": gap.mean * worth / marginal if marginal > 0 else math.nan,
                "gpus_half_width": gap.half_width * worth / marginal if marginal > 0 else math.nan,
            }
        )
    return table_of(rows)
