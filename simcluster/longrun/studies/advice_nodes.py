"""Advice on nodes: number of spares, value of more reliable parts, and when to retire a defective node."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.tables import rows_to_frame
from simcluster.base.units import DAY
from simcluster.longrun import text_formats
from simcluster.longrun.long_run import FailureMode, LongRun, RunOutcomes, SpareNodes
from simcluster.longrun.studies.policy_bench import (
    Advice,
    AdviceLine,
    AdviceMark,
    AdvicePlot,
    PolicyBench,
    category_share,
    mean_half_width,
    paired_difference,
)
from simcluster.longrun.studies.run_closed_forms import (
    RepairDemand,
    closed_form_exclusion_note,
    expected_efficiency,
    expected_shortage_share,
    mean_interruption,
    spare_ready_time,
)
from simcluster.longrun.text_formats import format_duration, format_percent, format_point_difference

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
    """Advise on the number of spare nodes: the fewest for which the job almost never lacks nodes.

    Short for less than ``SHORT`` of the time. With time short of nodes and goodput over counts of the kind that the
    scenario has most of (hot, if none). Erlang B is shown where it holds.
    """
    run = replace(bench.build_variant(), shrunk_paces=(), shrunk_shares=())  # it waits, and restarts
    repairs = RepairDemand.from_run(run)
    if not repairs.rate:
        raise InputError(
            "run.failures: no failure removes a node, so no spare is needed; set the repair time, as in repair: 2 d"
        )
    expected = fewest_spares(run, _MOST)
    if expected is None:
        raise InputError(
            f"run.spares: with {_MOST:,} spares the job is still short of nodes for "
            f"{format_percent(expected_shortage_share(run, _MOST))} of the time: repairs are slower than failures; "
            f"set more crews ({run.spares.crews}) or shorter repairs"
        )
    own = None if run.spares.unlimited else run.spares.count
    counts = {*(round(each) for each in np.linspace(0, 1.3 * expected + 3, _COUNTS)), *([] if own is None else [own])}
    outcomes = bench.simulate_all({count: _run_with_spares(run, count) for count in sorted(counts)})
    fewest = _search_fewest_spares(bench, run, repairs, outcomes)
    rows = []
    for count, found in sorted(outcomes.items()):
        short, goodput = _node_shortage_shares(_run_with_spares(run, count), repairs, found), category_share(found)
        measured = {"short": float(short.mean()), "short_half_width": mean_half_width(short)}
        measured["erlang_b"] = expected_shortage_share(run, count) if repairs.single_nodes else math.nan
        measured |= {"goodput": float(goodput.mean()), "half_width": mean_half_width(goodput)}
        rows.append({"spares": count, **measured})
    at = {row["spares"]: row for row in rows}
    by_erlang = f"; by Erlang B {expected}" if repairs.single_nodes else ""
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
    simulated = AdviceLine("short", "simulated", half_width_column="short_half_width")
    lines = simulated, AdviceLine("erlang_b", "Erlang B", is_dashed=True)
    label = "short of nodes, % of the time"
    picture = AdvicePlot("spares", "spare nodes", label, lines, tuple(marks), log_axes="y")
    holds = "Erlang B is the long-run share"
    if not repairs.single_nodes:
        holds = "Erlang B does not hold where a failure takes several nodes, and is not shown"
    return bench.make_advice(
        "spares", sentence, rows_to_frame(rows), picture, (f"runs begin with all spares free; {holds}",)
    )


def fewest_spares(run: LongRun, max_spares: int) -> int | None:
    """Return the fewest spares for which a job lacks nodes less than ``SHORT`` of the time; None if over a limit."""
    return next((count for count in range(max_spares) if expected_shortage_share(run, count) < SHORT), None)


def _run_with_spares(run: LongRun, count: int) -> LongRun:
    kept = run.spares
    most = int(np.argmax([kept.hot, kept.warm, kept.cold]))
    hot, warm, cold = (count if kind == most else 0 for kind in range(3))
    return replace(run, spares=SpareNodes(hot, warm, cold, kept.ready, kept.crews))


def _node_shortage_shares(run: LongRun, repairs: RepairDemand, outcomes: RunOutcomes) -> Floats:
    made = outcomes.outages[:, list(repairs.causes)].sum(axis=1) * spare_ready_time(run, 0)
    return np.asarray(np.maximum(0.0, category_share(outcomes, "waiting") - made / outcomes.wall))


def _search_fewest_spares(
    bench: PolicyBench, run: LongRun, repairs: RepairDemand, outcomes: dict[int, RunOutcomes]
) -> int:

    def are_enough_spares(count: int) -> bool:
        if count not in outcomes:
            outcomes[count] = bench.simulate(_run_with_spares(run, count))
        return float(_node_shortage_shares(_run_with_spares(run, count), repairs, outcomes[count]).mean()) < SHORT

    high = max(outcomes)
    while not are_enough_spares(high):
        high = 2 * high + 1
    low = -1
    while high - low > 1:
        between = [count for count in outcomes if low < count < high]
        middle = between[len(between) // 2] if between else (low + high) // 2
        low, high = (low, middle) if are_enough_spares(middle) else (middle, high)
    return high


def advise_on_reliability(bench: PolicyBench) -> Advice:
    """Advise on part reliability: goodput with fewer failures, and how many more GPUs would gain as much.

    Everything fails half, a fifth and a tenth as often. Additional GPUs fail as well: ``gpus`` counts them at the
    marginal gain (``marginal``, from the goodput at 1.1 times the failures), ``gpus_plain`` at a whole one each. An
    ``auto`` interval is chosen anew.
    """
    failures, gpus = bench.section.failures, bench.scenario.gpus

    def run_with_rate(rate_factor: float) -> LongRun:
        return bench.build_variant(failures=failures.model_copy(update={"times": failures.times * rate_factor}))

    runs = {times: run_with_rate(1 / times) for times in _RELIABLE}
    stop = mean_interruption(runs[1.0])
    if not stop.rate:
        raise InputError("run.failures: no failure stops the job, so fewer failures cannot help; set run.failures")
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
    value = f"{text_formats.format_with_half_width(last['gpus'], last['gpus_half_width'], 1)} GPUs"
    sentence = (
        f"Ten times the reliability (a tenth of the failures) is worth {value} more on {gpus:,}: "
        f"{format_point_difference(last['gain'], last['gain_half_width'])} of goodput, where an additional GPU "
        f"is worth {marginal:.3f} GPUs; an interruption now occurs every {format_duration(1 / stop.rate)} of training."
    )
    mark = AdviceMark(10.0, last["goodput"], f"10 x reliability: worth {value}")
    picture = AdvicePlot("times", "reliability of parts (times as long between failures)", marks=(mark,), log_axes="x")
    notes = closed_form_exclusion_note(runs[1.0])
    return bench.make_advice("reliability", sentence, rows_to_frame(rows), picture, notes)


def advise_on_defective_nodes(bench: PolicyBench) -> Advice:
    """Advise when to retire failing nodes: goodput gained, and healthy nodes retired by chance."""
    run = bench.build_variant()
    bad = [batch for cause in run.causes if (batch := cause.defective_batch) is not None and batch.machines]
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
    at_once = format_point_difference(first["ever"], first["ever_half_width"])
    sentence = (
        f"Retiring a node after {words} gains {format_point_difference(row[way], row[f'{way}_half_width'])} of goodput"
        f"{known} on {format_percent(first['never'])} without, and also retires {row[f'healthy_{way}']:,.2g} healthy "
        f"nodes per run by chance; at the first failure it would gain {at_once} "
        f"and {first['healthy_ever']:,.2g} healthy nodes."
    )
    lines = (
        AdviceLine("ever", "failures ever", half_width_column="ever_half_width"),
        AdviceLine("closed_form", "failures ever, first order", is_dashed=True),
        AdviceLine("window", f"failures {days}", half_width_column="window_half_width"),
    )
    mark = AdviceMark(row["failures"], row[way], words)
    picture = AdvicePlot("failures", "failures after which a node is retired", "goodput gained, points", lines, (mark,))
    notes = (
        "the closed form counts each avoided failure with its outage and half an interval, to first order; "
        "it excludes the wait for missing nodes",
        "the number of retired healthy nodes is by closed form (Poisson failures per node); their cost is excluded",
        "a run never gets more defective nodes than at its start: replacement nodes are healthy",
    )
    return bench.make_advice("bad-batch", sentence, table, picture, notes)


def _retirement_table(bench: PolicyBench, run: LongRun, window: float) -> pd.DataFrame:

    def run_with_retirement(failures: float, window: float) -> LongRun:
        rule: dict[str, Any] = {"retire": failures, "window": window}
        bad = {each.name: each.defective_batch and replace(each.defective_batch, **rule) for each in run.causes}
        return replace(run, causes=tuple(replace(cause, defective_batch=bad[cause.name]) for cause in run.causes))

    ways = {"ever": math.inf, "window": window}
    rules = {(count, way): run_with_retirement(count, limit) for count in _FAILURES for way, limit in ways.items()}
    ended = bench.simulate_all({(0, ""): run_with_retirement(0, math.inf), **rules})
    before, wall = category_share(ended[0, ""]), float(ended[0, ""].wall.mean())
    each = mean_interruption(run).total + run.pattern.pattern_seconds / run.pattern.snapshots_per_stored / 2
    busy = wall * float(before.mean())
    chosen = [number for number, cause in enumerate(run.causes) if cause.defective_batch is not None]
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
                expected_healthy_retired(run, cause, failures, limit, wall) for cause in run.causes
            )
        rows.append(row)
    return rows_to_frame(rows)


def expected_extra_failures(run: LongRun, cause: FailureMode, limit: float, seconds: float) -> float:
    """Return the expected extra failures of a cause's defective nodes before retirement, within ``seconds``.

    A node's k-th failure occurs with the probability that a Poisson count is k or more, and if no earlier repair has
    cured it; those after ``limit`` are another node's.
    """
    from scipy.special import gammainc

    if cause.defective_batch is None:
        return 0.0
    mean = cause.rate / run.machines * cause.defective_batch.rate_factor * seconds
    count = np.arange(1, min(limit, math.ceil(mean + 10 * math.sqrt(mean) + 20)) + 1)
    each = float(((1 - cause.defective_batch.cured) ** (count - 1) * gammainc(count, mean)).sum())
    return cause.defective_batch.machines * each * (1 - 1 / cause.defective_batch.rate_factor)


def expected_healthy_retired(run: LongRun, cause: FailureMode, failures: int, window: float, seconds: float) -> float:
    """Return the expected number of healthy nodes retired by chance within ``seconds``.

    Failures of a node are a Poisson process of rate r: 1 - P(fewer than n in all) of them ever; within a window, to
    first order, r T times the probability of n - 1 or more in the window before one.
    """
    from scipy.special import gammainc

    if cause.defective_batch is None:
        return 0.0
    rate, count = cause.rate / run.machines, run.machines - cause.defective_batch.machines
    ever = float(gammainc(failures, rate * seconds))
    if math.isinf(window) or failures == 1:
        return count * ever
    again = float(gammainc(failures - 1, rate * min(window, seconds)))
    return count * min(ever, -float(np.expm1(-rate * seconds * again)))
