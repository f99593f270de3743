"""Advice on nodes: the number of spares, the value of more reliable parts, and when to retire a defective node."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.tables import rows_to_frame
from simcluster.base.units import DAY
from simcluster.longrun.run import FailureMode, LongRun, Outcomes, SpareNodes
from simcluster.longrun.studies.policies import (
    Advice,
    AdviceLine,
    AdviceMark,
    AdvicePicture,
    PolicyBench,
    category_share,
    mean_half_width,
    paired_difference,
)
from simcluster.longrun.studies.run_closed_forms import (
    RepairDemand,
    excluded_note,
    expected_efficiency,
    expected_shortage,
    mean_interruption,
    spare_ready_time,
)
from simcluster.longrun.text import duration, format_percent, format_points, format_with_half

if TYPE_CHECKING:
    import pandas as pd

SHORT = 0.001
"""Share of time for which a job may be short of nodes, with the fewest spares."""
_COUNTS = 9
_MOST = 2000
_RELIABLE = (1.0, 2.0, 5.0, 10.0)
_MORE_GPUS = 1.1
_FAILURES = (1, 2, 3, 4, 6)
_WINDOW = 7 * DAY


def advise_on_spares(bench: PolicyBench) -> Advice:
    """Advise on the number of spare nodes: the fewest with which the job is hardly ever short of nodes.

    Short for less than ``SHORT`` of the time. With time short of nodes and goodput over counts of the kind that the
    scenario has most of (hot, if none). Erlang B is shown where it holds.
    """
    run = replace(bench.run_with(), short=())
    repairs = RepairDemand.of_run(run)
    if not repairs.rate:
        raise InputError(
            "run.failures: no failure removes a node, so no spare is needed; set the repair time, as in repair: 2 d"
        )
    expected = fewest_spares(run, _MOST)
    if expected is None:
        raise InputError(
            f"run.spares: with {_MOST:,} the job is still short of nodes for "
            f"{format_percent(expected_shortage(run, _MOST))} of the time: repairs are slower than failures; set more "
            f"crews ({run.spares.crews}) or shorter repairs"
        )
    own = None if run.spares.unlimited else run.spares.count
    counts = {*(round(each) for each in np.linspace(0, 1.3 * expected + 3, _COUNTS)), *([] if own is None else [own])}
    outcomes = bench.simulate_all({count: _run_with_spares(run, count) for count in sorted(counts)})
    fewest = _search_fewest_spares(bench, run, repairs, outcomes)
    rows = []
    for count, found in sorted(outcomes.items()):
        short, goodput = _shortage_shares(_run_with_spares(run, count), repairs, found), category_share(found)
        measured = {"short": float(short.mean()), "short_half_width": mean_half_width(short)}
        measured["erlang_b"] = expected_shortage(run, count) if repairs.single else math.nan
        measured |= {"goodput": float(goodput.mean()), "half_width": mean_half_width(goodput)}
        rows.append({"spares": count, **measured})
    at = {row["spares"]: row for row in rows}
    by_erlang = f"; by Erlang B {expected}" if repairs.single else ""
    marks = [AdviceMark(fewest, at[fewest]["short"], f"fewest below {format_percent(SHORT, 1)}: {fewest}")]
    words = ""
    if own is not None:
        words = f"; the scenario's {own} leave{'s' * (own == 1)} it short for {format_percent(at[own]['short'], 3)}"
        marks += [AdviceMark(own, at[own]["short"], "the scenario's", chosen=False)] * (own != fewest)
    sentence = (
        f"{fewest} spare{'s are' if fewest != 1 else ' is'} the fewest with which the job is short of nodes for "
        f"less than {format_percent(SHORT, 1)} of the time ({format_percent(at[fewest]['short'], 3)}{by_erlang}), for "
        f"a goodput of {format_percent(at[fewest]['goodput'])}{words}."
    )
    lines = AdviceLine("short", "simulated", wide="short_half_width"), AdviceLine("erlang_b", "Erlang B", theory=True)
    label = "short of nodes, % of the time"
    picture = AdvicePicture("spares", "spare nodes", label, lines, tuple(marks), log="y")
    holds = "Erlang B is the long-run share"
    if not repairs.single:
        holds = "Erlang B does not hold where a failure takes several nodes, and is not shown"
    return bench.make_advice(
        "spares", sentence, rows_to_frame(rows), picture, (f"runs begin with all spares free; {holds}",)
    )


def fewest_spares(run: LongRun, most: int) -> int | None:
    """Return the fewest spare nodes with which a job is short for less than ``SHORT`` of the time; None if > most."""
    return next((count for count in range(most) if expected_shortage(run, count) < SHORT), None)


def _run_with_spares(run: LongRun, count: int) -> LongRun:
    kept = run.spares
    most = int(np.argmax([kept.hot, kept.warm, kept.cold]))
    hot, warm, cold = (count if kind == most else 0 for kind in range(3))
    return replace(run, spares=SpareNodes(hot, warm, cold, kept.ready, kept.crews))


def _shortage_shares(run: LongRun, repairs: RepairDemand, outcomes: Outcomes) -> Floats:
    made = outcomes.outages[:, list(repairs.causes)].sum(axis=1) * spare_ready_time(run, 0)
    return np.asarray(np.maximum(0.0, category_share(outcomes, "waiting") - made / outcomes.wall))


def _search_fewest_spares(
    bench: PolicyBench, run: LongRun, repairs: RepairDemand, outcomes: dict[int, Outcomes]
) -> int:

    def is_enough(count: int) -> bool:
        if count not in outcomes:
            outcomes[count] = bench.simulate(_run_with_spares(run, count))
        return float(_shortage_shares(_run_with_spares(run, count), repairs, outcomes[count]).mean()) < SHORT

    high = max(outcomes)
    while not is_enough(high):
        high = 2 * high + 1
    low = -1
    while high - low > 1:
        between = [count for count in outcomes if low < count < high]
        middle = between[len(between) // 2] if between else (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def advise_on_reliability(bench: PolicyBench) -> Advice:
    """Advise on part reliability: goodput with fewer failures, and the GPUs that would gain as much.

    Everything fails half, a fifth and a tenth as often. Additional GPUs fail as well: ``gpus`` counts them at the
    marginal gain (``marginal``, from the goodput at 1.1 times the failures), ``gpus_plain`` at a whole one each. An
    ``auto`` interval is chosen anew.
    """
    failures, gpus = bench.section.failures, bench.scenario.gpus

    def run_with_rate(times: float) -> LongRun:
        return bench.run_with(failures=failures.model_copy(update={"times": failures.times * times}))

    runs = {times: run_with_rate(1 / times) for times in _RELIABLE}
    stop = mean_interruption(runs[1.0])
    if not stop.rate:
        raise InputError("run.failures: nothing stops the job, so fewer failures cannot help; set run.failures")
    goodput = bench.simulate_goodputs({**runs, 1 / _MORE_GPUS: run_with_rate(_MORE_GPUS)})
    now = goodput[1.0]
    marginal = 1 + math.log(float(goodput[1 / _MORE_GPUS].mean() / now.mean())) / math.log(_MORE_GPUS)
    rows = []
    for times, run in runs.items():
        gap, worth = paired_difference(now, goodput[times]), gpus / float(now.mean())
        row = {"times": times, "goodput": float(goodput[times].mean()), "half_width": mean_half_width(goodput[times])}
        row |= {"closed_form": expected_efficiency(run), "gain": gap.mean, "gain_half_width": gap.half_width}
        row |= {"gpus_plain": gap.mean * worth, "gpus": math.nan, "gpus_half_width": math.nan}
        if marginal > 0:
            row |= {"gpus": gap.mean * worth / marginal, "gpus_half_width": gap.half_width * worth / marginal}
        rows.append(row)
    last = rows[-1]
    value = f"{format_with_half(last['gpus'], last['gpus_half_width'], 1)} GPUs"
    sentence = (
        f"Ten times the reliability (a tenth of the failures) is worth {value} more on {gpus:,}: "
        f"{format_points(last['gain'], last['gain_half_width'])} of goodput, where one more GPU adds {marginal:.3f} of "
        f"one; an interruption now occurs every {duration(1 / stop.rate)} of training."
    )
    mark = AdviceMark(10.0, last["goodput"], f"10 x reliability: worth {value}")
    picture = AdvicePicture("times", "reliability of parts (times as long between failures)", marks=(mark,), log="x")
    return bench.make_advice("reliability", sentence, rows_to_frame(rows), picture, excluded_note(runs[1.0]))


def advise_on_defective_nodes(bench: PolicyBench) -> Advice:
    """Advise on retiring a node after N failures: goodput gained, and healthy nodes retired by chance."""
    run = bench.run_with()
    bad = [cause.bad for cause in run.causes if cause.bad is not None and cause.bad.machines]
    if not bad:
        raise InputError(
            "run.failures: no failure has defective nodes, so there is nothing to retire; add some, as in "
            "bad: {share: 2%, times: 20, cured: 30%}"
        )
    window = next((batch.window for batch in bad if math.isfinite(batch.window)), _WINDOW)
    table = _retirement_table(bench, run, window)
    rows = [{str(name): float(value) for name, value in row.items()} for row in table.to_dict("records")]
    ways = [(row, way) for row in rows for way in ("window", "ever")]
    few = [(row, way) for row, way in ways if row[f"healthy_{way}"] < 1]
    if few:  # the largest gain that retires under one healthy node per run, or else the fewest retired
        row, way = max(few, key=lambda each: each[0][each[1]])
    else:
        row, way = min(ways, key=lambda each: each[0][f"healthy_{each[1]}"])
    first, days = rows[0], f"within {window / DAY:,.3g} d"
    words = f"{int(row['failures'])} failures {'ever' if way == 'ever' else days}"
    known = "" if abs(row[way]) > row[f"{way}_half_width"] else " (not distinguishable with this number of runs)"
    sentence = (
        f"Retiring a node after {words} gains {format_points(row[way], row[f'{way}_half_width'])} of goodput{known} on "
        f"{format_percent(first['never'])} without, and also retires {row[f'healthy_{way}']:,.2g} healthy nodes per "
        f"run by chance; at the first failure it would gain {format_points(first['ever'], first['ever_half_width'])} "
        f"and {first['healthy_ever']:,.2g} healthy nodes."
    )
    lines = (
        AdviceLine("ever", "failures ever", wide="ever_half_width"),
        AdviceLine("closed_form", "failures ever, first order", theory=True),
        AdviceLine("window", f"failures {days}", wide="window_half_width"),
    )
    mark = AdviceMark(row["failures"], row[way], words)
    label = "failures after which a node is retired"
    picture = AdvicePicture("failures", label, "goodput gained, points", lines, (mark,))
    notes = (
        "the closed form counts each avoided failure with its outage and half an interval, to first order; "
        "it excludes the wait for missing nodes",
        "retired healthy nodes are counted by closed form (failures of each a Poisson process), and cost nothing here",
        "a run has no more defective nodes than it begins with: a new node is as good as any",
    )
    return bench.make_advice("bad-batch", sentence, table, picture, notes)


def _retirement_table(bench: PolicyBench, run: LongRun, window: float) -> pd.DataFrame:

    def run_with_retirement(failures: float, window: float) -> LongRun:
        bad = {cause.name: cause.bad and replace(cause.bad, retire=failures, window=window) for cause in run.causes}
        return replace(run, causes=tuple(replace(cause, bad=bad[cause.name]) for cause in run.causes))

    ways = {"ever": math.inf, "window": window}
    rules = {(count, way): run_with_retirement(count, limit) for count in _FAILURES for way, limit in ways.items()}
    ended = bench.simulate_all({(0, ""): run_with_retirement(0, math.inf), **rules})
    before, wall = category_share(ended[0, ""]), float(ended[0, ""].wall.mean())
    each = mean_interruption(run).whole + run.pattern.period / run.pattern.cycles / 2
    busy = wall * float(before.mean())
    chosen = [number for number, cause in enumerate(run.causes) if cause.bad is not None]
    rows = []
    for failures in _FAILURES:
        row: dict[str, Any] = {"failures": failures, "never": float(before.mean())}
        row["never_half_width"] = mean_half_width(before)
        limits = math.inf, failures
        extra = [[expected_extra_failures(run, cause, most, busy) for most in limits] for cause in run.causes]
        row["closed_form"] = sum(never - retired for never, retired in extra) * each / wall
        for way, limit in ways.items():
            after = ended[failures, way]
            gap = paired_difference(before, category_share(after))
            row |= {way: gap.mean, f"{way}_half_width": gap.half_width}
            row[f"failures_{way}"] = float(after.strikes[:, chosen].sum(axis=1).mean())
            row[f"healthy_{way}"] = sum(
                expected_retired_healthy(run, cause, failures, limit, wall) for cause in run.causes
            )
        rows.append(row)
    return rows_to_frame(rows)


def expected_extra_failures(run: LongRun, cause: FailureMode, limit: float, seconds: float) -> float:
    """Return the expected extra failures of a cause's defective nodes in ``seconds``, until their retirement.

    A node's k-th failure occurs with the probability that a Poisson count is k or more, and if no earlier repair has
    cured it; those after ``limit`` are another node's.
    """
    from scipy.special import gammainc

    if cause.bad is None:
        return 0.0
    mean = cause.rate / run.machines * cause.bad.times * seconds
    count = np.arange(1, min(limit, math.ceil(mean + 10 * math.sqrt(mean) + 20)) + 1)
    each = float(((1 - cause.bad.cured) ** (count - 1) * gammainc(count, mean)).sum())
    return cause.bad.machines * each * (1 - 1 / cause.bad.times)


def expected_retired_healthy(run: LongRun, cause: FailureMode, failures: int, window: float, seconds: float) -> float:
    """Return the expected number of healthy nodes that are retired by chance in ``seconds``.

    Failures of a node are a Poisson process of rate r: 1 - P(fewer than n in all) of them ever; within a window, to
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
