"""Advice on checkpoints: how often, whether to write them behind training, and copies in peers' memory."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.longrun.ending import check_end
from simcluster.longrun.pattern import STORAGE
from simcluster.longrun.run import LongRun
from simcluster.longrun.studies.advised import (
    Advice,
    AdviceLine,
    AdviceMark,
    AdvicePicture,
    duration,
    left_out_note,
    percent,
    points,
)
from simcluster.longrun.studies.build import section_of
from simcluster.longrun.studies.in_theory import efficiency_of, left_out, two_levels_of
from simcluster.longrun.studies.intervals import best_steps
from simcluster.longrun.studies.policies import PolicyBench, half_width, paired, table_of
from simcluster.scenario.run_section import MemoryCopies

if TYPE_CHECKING:
    import pandas as pd

EVERY = (2, 4, 8, 16, 32)
"""Of so many snapshots one goes on to storage."""


def memory(bench: PolicyBench) -> Advice:
    """What copies in peers' memory are worth (Gemini, SOSP 2023): one snapshot in k on storage, others with peers,
    each k at the interval that loses least, against all on storage, on common random numbers."""
    runs = {1: _run(bench, 1), **{every: _run(bench, every) for every in EVERY}}
    goodput = bench.goodputs(runs)
    mean = {every: float(values.mean()) for every, values in goodput.items()}
    best = max(EVERY, key=lambda every: mean[every])
    gap = paired(goodput[1], goodput[best])
    verdict = "worth it" if gap.holds and gap.mean > 0 else "not worth it" if gap.holds else "of no difference"
    gpus = bench.scenario.gpus * gap.mean / mean[1]
    at = {every: duration(run.pattern.steps * run.pattern.step) for every, run in runs.items()}
    sentence = (
        f"Copies in peers' memory are {verdict}: {points(gap.mean, gap.half_width)} of goodput with one snapshot in "
        f"{best} on storage ({percent(mean[best])}, one every {at[best]}) against storage alone ({percent(mean[1])}, "
        f"every {at[1]}), as much as {gpus:,.1f} GPUs."
    )
    rows = [
        {
            "storage_every": every,
            "steps": run.pattern.steps,
            "interval_s": run.pattern.steps * run.pattern.step,
            "goodput": mean[every],
            "half_width": half_width(goodput[every]),
            "closed_form": efficiency_of(run) if every == 1 else two_levels_of(run),
            "difference": paired(goodput[1], goodput[every]).mean,
            "difference_half_width": paired(goodput[1], goodput[every]).half_width,
        }
        for every, run in runs.items()
    ]
    marks = (
        AdviceMark(1, mean[1], "storage alone", chosen=False),
        AdviceMark(best, mean[best], f"one in {best} on storage"),
    )
    lines = AdviceLine("goodput", "simulated", wide="half_width"), AdviceLine("closed_form", "closed form", theory=True)
    label = "snapshots for each that goes on to storage"
    picture = AdvicePicture("storage_every", label, "goodput, %", lines, marks, log="x")
    notes = (_stalls(runs[best]), _needs_storage(runs[best]), *left_out_note(left_out(runs[1])))
    return Advice("memory", bench.scenario.name, sentence, table_of(rows), picture, bench.played, notes)


def _run(bench: PolicyBench, every: int) -> LongRun:
    """The run with one snapshot in so many on storage, at the interval that loses least."""
    spec = section_of(bench.scenario).checkpoint
    if spec.to is None and (spec.memory is None or None in (spec.memory.stall, spec.memory.write)):
        raise InputError(
            "advice: memory: nothing says how long a copy to peers takes beside a stall that was measured; give what "
            "storage takes, as in run.checkpoint.to: 100 GB/s, or run.checkpoint.memory.stall and .write"
        )
    copies = (spec.memory or MemoryCopies()).model_copy(update={"storage_every": every}) if every > 1 else None
    return bench.with_section(checkpoint=spec.model_copy(update={"every": "auto", "memory": copies}))


def _stalls(run: LongRun) -> str:
    """What each kind stops training for."""
    storage, copies = run.pattern.storage, run.pattern.memory
    assert copies is not None
    return (
        f"a snapshot for storage stops training for {storage.stall:.3g} s, one for peers for {copies.stall:.3g} s and "
        f"takes {copies.write:.3g} s to them (run.checkpoint.memory.stall and .write, where they were measured)"
    )


def _needs_storage(run: LongRun) -> str:
    """Which failures the copies do not survive."""
    names = [cause.name for cause in run.causes if cause.stops and cause.survives == STORAGE]
    return f"only a checkpoint on storage survives: {', '.join(names) or 'no failure of this run'}"


GRID = math.sqrt(2)
"""From an interval to the next that is tried."""
_RARE = f"{10**9} steps"  # so that any write keeps up, until the best interval is known
_AROUND = 6  # steps of the grid to either side of what the closed form says


def interval(bench: PolicyBench) -> Advice:
    """How often to checkpoint: goodput over intervals on common random numbers, the closed form beside it, the best,
    and what the scenario's own loses against that."""
    own = bench.with_section()
    known_best = best_steps(own)
    around = [round(known_best * GRID**power) for power in range(-_AROUND, _AROUND + 1)]
    runs = _runs(own, [*around, own.pattern.steps])
    goodput = bench.goodputs(runs)
    best = max(goodput, key=lambda steps: float(goodput[steps].mean()))
    table = _over_intervals(own, runs, goodput)
    gap = paired(goodput[own.pattern.steps], goodput[best])
    seconds = own.pattern.each
    loses = "it is the scenario's own"
    if best != own.pattern.steps:
        lost = points(gap.mean, gap.half_width)
        loses = f"the scenario's own, every {duration(own.pattern.steps * seconds)}, loses {lost}"
    value, known = float(goodput[best].mean()), efficiency_of(runs[best])
    beside = "" if math.isnan(known) else f" (closed form {percent(known)})"
    sentence = (
        f"A checkpoint every {duration(best * seconds)} ({_steps(best)}) is best, for a goodput of {percent(value)}"
        f"{beside}; {loses}."
    )
    marks = [AdviceMark(best * seconds, value, f"best: {duration(best * seconds)}")]
    if best != own.pattern.steps:
        mean = float(goodput[own.pattern.steps].mean())
        marks.append(AdviceMark(own.pattern.steps * seconds, mean, "the scenario's own", chosen=False))
    lines = AdviceLine("goodput", "simulated", wide="half_width"), AdviceLine("closed_form", "closed form", theory=True)
    unit, word = (60.0, "min") if best * seconds > 120 else (1.0, "s")
    picture = AdvicePicture(
        "interval_s", f"work between two checkpoints, {word}", "goodput, %", lines, tuple(marks), unit, log="x"
    )
    return Advice("interval", bench.scenario.name, sentence, table, picture, bench.played, left_out_note(left_out(own)))


def _checkpoint(bench: PolicyBench, **changes: object) -> object:
    return section_of(bench.scenario).checkpoint.model_copy(update=changes)


def _steps(count: int) -> str:
    return f"{count:,} step{'s' * (count > 1)}"


def _runs(run: LongRun, steps: Iterable[int]) -> dict[int, LongRun]:
    """The run with checkpoints so many steps apart, without those with which a write would not keep up, or the run
    hardly ever end."""
    found = {}
    for each in sorted(set(steps)):
        try:
            found[each] = replace(run, pattern=replace(run.pattern, steps=each))
            check_end(found[each])
        except (InputError, ZeroDivisionError):
            found.pop(each, None)
    return found


def _over_intervals(own: LongRun, runs: dict[int, LongRun], goodput: dict[int, Floats]) -> pd.DataFrame:
    rows = []
    for steps, run in runs.items():
        gap = paired(goodput[own.pattern.steps], goodput[steps])
        rows.append(
            {
                "steps": steps,
                "interval_s": steps * run.pattern.each,
                "goodput": float(goodput[steps].mean()),
                "half_width": half_width(goodput[steps]),
                "closed_form": efficiency_of(run),
                "difference": gap.mean,
                "difference_half_width": gap.half_width,
            }
        )
    return table_of(rows)


def behind(bench: PolicyBench) -> Advice:
    """Is it worth it to write checkpoints behind training?  Blocking ones against snapshots, each at its best interval,
    on common random numbers; copies in peers' memory are left out of both."""
    autos = _both_ways(bench)
    variants = {(name, steps): each for name, run in autos.items() for steps, each in _intervals(run, autos).items()}
    goodput: dict[str, dict[int, Floats]] = {name: {} for name in autos}
    for (name, steps), values in bench.goodputs(variants).items():
        goodput[name][steps] = values
    best = {name: max(found, key=lambda steps: float(found[steps].mean())) for name, found in goodput.items()}
    gap = paired(*(goodput[name][best[name]] for name in autos))
    step = autos["blocking"].pattern.each
    at = {name: best[name] * step for name in autos}
    mean = {name: float(goodput[name][best[name]].mean()) for name in autos}
    gpus = bench.scenario.gpus * gap.mean / mean["blocking"]
    verdict = (
        "are worth it" if gap.holds and gap.mean > 0 else "are not worth it" if gap.holds else "make no difference"
    )
    known = {name: efficiency_of(_runs(run, [best[name]])[best[name]]) for name, run in autos.items()}
    theory = 100 * (known["snapshot"] - known["blocking"])
    sentence = (
        f"Snapshots that are written behind training {verdict}: {points(gap.mean, gap.half_width)} of goodput "
        f"(closed form {theory:.2f}) against "
        f"blocking ({percent(mean['blocking'])} every {duration(at['blocking'])}, {percent(mean['snapshot'])} every "
        f"{duration(at['snapshot'])}), as much as {gpus:,.1f} GPUs."
    )
    lines, marks = [], []
    for name in autos:
        lines += [AdviceLine(name, name, wide=f"{name}_half_width")]
        lines += [AdviceLine(f"{name}_closed_form", f"{name}, closed form", theory=True)]
        marks += [AdviceMark(at[name], mean[name], f"{name}: {duration(at[name])}")]
    unit, word = (60.0, "min") if at["blocking"] > 120 else (1.0, "s")
    picture = AdvicePicture(
        "interval_s", f"work between two checkpoints, {word}", "goodput, %", tuple(lines), tuple(marks), unit, log="x"
    )
    table = _both_over_intervals(autos, goodput)
    stops = [f"a {name} one stops training for {run.pattern.storage.stall:.4g} s" for name, run in autos.items()]
    behind_it = f"its write takes {autos['snapshot'].pattern.storage.write:.4g} s behind it"
    notes = (f"{'; '.join(stops)}, {behind_it}", *left_out_note(left_out(autos["blocking"])))
    return Advice("behind", bench.scenario.name, sentence, table, picture, bench.played, notes)


def _both_ways(bench: PolicyBench) -> dict[str, LongRun]:
    """The run with blocking checkpoints and with snapshots, intervals at the closed form's best."""
    spec = section_of(bench.scenario).checkpoint
    measured = spec.stall is not None or spec.write is not None
    if measured and spec.to is None and spec.mode == "blocking":
        raise InputError(
            "run.checkpoint: stall: is the time of a blocking checkpoint that was measured, so nothing says how long a "
            "snapshot and its write would take; give what storage takes, as in to: 100 GB/s"
        )
    snapshot = {} if spec.mode == "snapshot" else {"stall": None, "write": None}
    shared: dict[str, object] = {"every": _RARE, "memory": None}
    behind = bench.with_section(checkpoint=_checkpoint(bench, **{**shared, "mode": "snapshot", **snapshot}))
    blocking: dict[str, float | None] = {"stall": None, "write": None}
    if spec.mode == "snapshot" and spec.stall is not None:  # a program that waits for the write does the rest as well
        blocking = {"stall": behind.pattern.storage.stall + behind.pattern.storage.write, "write": 0.0}
    elif spec.to is None:
        blocking = {"stall": (spec.stall or 0.0) + (spec.write or 0.0), "write": 0.0}
    waits = bench.with_section(checkpoint=_checkpoint(bench, **{**shared, "mode": "blocking", **blocking}))
    runs = {"blocking": waits, "snapshot": behind}
    return {name: replace(run, pattern=replace(run.pattern, steps=best_steps(run))) for name, run in runs.items()}


def _intervals(run: LongRun, autos: dict[str, LongRun]) -> dict[int, LongRun]:
    """The run at each interval that is tried."""
    steps = [auto.pattern.steps for auto in autos.values()]
    low, high = max(1.0, min(steps) / 4), max(steps) * 4.0
    count = max(2, round(math.log2(high / low)) + 1)
    grid = [round(each) for each in np.geomspace(low, high, count)]
    return _runs(run, [*grid, *steps])


def _both_over_intervals(autos: dict[str, LongRun], goodput: dict[str, dict[int, Floats]]) -> pd.DataFrame:
    rows = []
    for steps in sorted(set().union(*goodput.values())):
        row = {"steps": steps, "interval_s": steps * autos["blocking"].pattern.each}
        for name, run in autos.items():
            values = goodput[name].get(steps)
            row[name] = math.nan if values is None else float(values.mean())
            row[f"{name}_half_width"] = math.nan if values is None else half_width(values)
            there = math.nan if values is None else efficiency_of(_runs(run, [steps])[steps])
            row[f"{name}_closed_form"] = there
        rows.append(row)
    return table_of(rows)
