"""Table of all ``simcluster advise`` questions, and answers to the questions about checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.tables import rows_to_frame
from simcluster.documents.diagnostics import did_you_mean
from simcluster.longrun.checkpoint_pattern import STORAGE
from simcluster.longrun.defaults import list_assumptions
from simcluster.longrun.long_run import LongRun
from simcluster.longrun.run_feasibility import check_run_ends
from simcluster.longrun.studies.advice_nodes import advise_on_defective_nodes, advise_on_reliability, advise_on_spares
from simcluster.longrun.studies.advice_restarts import advise_on_restart, advise_on_straggler
from simcluster.longrun.studies.cluster_states import ClusterStateSimulator
from simcluster.longrun.studies.policy_bench import (
    Advice,
    AdviceLine,
    AdviceMark,
    AdvicePlot,
    PolicyBench,
    goodput_table,
    mean_half_width,
    paired_difference,
)
from simcluster.longrun.studies.run_builder import LEAST, resolve_run_count
from simcluster.longrun.studies.run_chunks import Workers, open_run_simulator
from simcluster.longrun.studies.run_closed_forms import (
    best_interval_steps,
    closed_form_exclusion_note,
    expected_efficiency,
    two_level_efficiency,
)
from simcluster.longrun.text_formats import format_duration, format_percent, format_point_difference
from simcluster.scenario.run_section import PeerMemoryCopies
from simcluster.scenario.scenario import Scenario, load
from simcluster.studies.sweep.sweep import Progress

EVERY = (2, 4, 8, 16, 32)
"""Numbers of snapshots per storage write that are compared."""
GRID = math.sqrt(2)
"""Ratio of two neighbouring intervals that are tried."""
_RARE = f"{10**9} steps"  # long enough for any write, until the best interval is known
_AROUND = 6  # steps of the grid to either side of the closed form's interval


def advise_on_memory_copies(bench: PolicyBench) -> Advice:
    """Advise whether to checkpoint to peers' memory (Gemini, SOSP 2023) as well as to storage."""
    runs = {every: _make_run_with_copies(bench, every) for every in (1, *EVERY)}
    goodput = bench.simulate_goodputs(runs)
    mean = {every: float(values.mean()) for every, values in goodput.items()}
    best = max(EVERY, key=lambda every: mean[every])
    gap = paired_difference(goodput[1], goodput[best])
    gpus = bench.scenario.gpus * gap.mean / mean[1]
    seconds = {every: run.pattern.steps * run.pattern.step for every, run in runs.items()}
    sentence = (
        f"Copies in peers' memory are {gap.choose_text_by_sign('worth it', 'not worth it', 'no different')}: "
        f"{format_point_difference(gap.mean, gap.half_width)} of goodput with one snapshot in {best} on storage "
        f"({format_percent(mean[best])}, one every {format_duration(seconds[best])}) against storage alone "
        f"({format_percent(mean[1])}, every {format_duration(seconds[1])}), as much as {gpus:,.1f} GPUs."
    )
    table = goodput_table(
        goodput,
        1,
        lambda every: {"storage_every": every, "steps": runs[every].pattern.steps, "interval_s": seconds[every]},
        lambda every: expected_efficiency(runs[every]) if every == 1 else two_level_efficiency(runs[every]),
    )
    marks = (
        AdviceMark(1, mean[1], "storage alone", chosen=False),
        AdviceMark(best, mean[best], f"one in {best} on storage"),
    )
    picture = AdvicePlot("storage_every", "snapshots per copy on storage", marks=marks, log_axes="x")
    storage, copies = runs[best].pattern.storage, runs[best].pattern.memory
    assert copies is not None
    deep = [cause.name for cause in runs[best].causes if cause.stops_job and cause.survives == STORAGE]
    notes = (
        f"a snapshot for storage stops training for {storage.stall:.3g} s, one for peers for {copies.stall:.3g} s and "
        f"takes {copies.write:.3g} s to them (set run.checkpoint.memory.stall and .write if measured)",
        f"only a checkpoint on storage survives: {', '.join(deep) or 'no failure of this run'}",
        *closed_form_exclusion_note(runs[1]),
    )
    return bench.make_advice("memory", sentence, table, picture, notes)


def _make_run_with_copies(bench: PolicyBench, every: int) -> LongRun:
    spec = bench.section.checkpoint
    if spec.to is None and (spec.memory is None or None in (spec.memory.stall, spec.memory.write)):
        raise InputError(
            "advice: memory: the time of a copy to peers does not follow from a measured stall; set "
            "run.checkpoint.to (storage bandwidth), e.g. 100 GB/s, or run.checkpoint.memory.stall and .write"
        )
    copies = (spec.memory or PeerMemoryCopies()).model_copy(update={"storage_every": every}) if every > 1 else None
    return bench.build_variant(checkpoint=spec.model_copy(update={"every": "auto", "memory": copies}))


def advise_on_interval(bench: PolicyBench) -> Advice:
    """Advise on the checkpoint interval: goodput by interval, the best interval, and the scenario's."""
    own = bench.build_variant()
    mine, seconds, nearby = own.pattern.steps, own.pattern.step_with_validation, best_interval_steps(own)
    runs = _make_runs_at_intervals(own, [*(round(nearby * GRID**each) for each in range(-_AROUND, _AROUND + 1)), mine])
    goodput = bench.simulate_goodputs(runs)
    mean = {steps: float(values.mean()) for steps, values in goodput.items()}
    best = max(mean, key=lambda steps: mean[steps])
    marks = [AdviceMark(best * seconds, mean[best], f"best: {format_duration(best * seconds)}")]
    loses = "the scenario has it"
    if best != mine:
        gap = paired_difference(goodput[mine], goodput[best])
        lost = format_point_difference(gap.mean, gap.half_width)
        loses = f"the scenario's interval, every {format_duration(mine * seconds)}, loses {lost}"
        marks.append(AdviceMark(mine * seconds, mean[mine], "the scenario's", chosen=False))
    known = expected_efficiency(runs[best])
    closed_form = "" if math.isnan(known) else f" (closed form {format_percent(known)})"
    sentence = (
        f"A checkpoint every {format_duration(best * seconds)} ({best:,} step{'s' * (best > 1)}) is best, for a "
        f"goodput of {format_percent(mean[best])}{closed_form}; {loses}."
    )
    table = goodput_table(
        goodput, mine, lambda n: {"steps": n, "interval_s": n * seconds}, lambda n: expected_efficiency(runs[n])
    )
    picture = _make_interval_plot(best * seconds, marks)
    return bench.make_advice("interval", sentence, table, picture, closed_form_exclusion_note(own))


def _make_interval_plot(seconds: float, marks: Iterable[AdviceMark], **more: Any) -> AdvicePlot:
    unit, word = (60.0, "min") if seconds > 120 else (1.0, "s")
    label = f"work between two checkpoints, {word}"
    return AdvicePlot("interval_s", label, marks=tuple(marks), x_unit=unit, log_axes="x", **more)


def _make_runs_at_intervals(run: LongRun, steps: Iterable[int]) -> dict[int, LongRun]:
    """Return a run for each checkpoint interval (steps) at which writes keep up and the run can end."""
    found = {}
    for each in sorted(set(steps)):
        try:
            found[each] = replace(run, pattern=replace(run.pattern, steps=each))
            check_run_ends(found[each])
        except (InputError, ZeroDivisionError):
            found.pop(each, None)
    return found


def advise_on_async_checkpoints(bench: PolicyBench) -> Advice:
    """Advise whether to checkpoint asynchronously or blocking, comparing both at their best intervals."""
    autos = _make_blocking_and_async_runs(bench)
    best_of = [auto.pattern.steps for auto in autos.values()]
    low, high = max(1.0, min(best_of) / 4), max(best_of) * 4.0
    grid = [round(each) for each in np.geomspace(low, high, max(2, round(math.log2(high / low)) + 1))]
    runs = {name: _make_runs_at_intervals(run, [*grid, *best_of]) for name, run in autos.items()}
    goodput: dict[str, dict[int, Floats]] = {name: {} for name in autos}
    every_run = {(name, steps): run for name, at in runs.items() for steps, run in at.items()}
    for (name, steps), values in bench.simulate_goodputs(every_run).items():
        goodput[name][steps] = values
    best = {name: max(found, key=lambda steps: float(found[steps].mean())) for name, found in goodput.items()}
    gap = paired_difference(*(goodput[name][best[name]] for name in autos))
    seconds = {name: best[name] * autos["blocking"].pattern.step_with_validation for name in autos}
    mean = {name: float(goodput[name][best[name]].mean()) for name in autos}
    known = {name: expected_efficiency(runs[name][best[name]]) for name in autos}
    sentence = (
        "Asynchronous checkpoints "
        f"{gap.choose_text_by_sign('are worth it', 'are not worth it', 'make no difference')}: "
        f"{format_point_difference(gap.mean, gap.half_width)} of goodput (closed form "
        f"{100 * (known['snapshot'] - known['blocking']):.2f}) against "
        f"blocking ({format_percent(mean['blocking'])} every {format_duration(seconds['blocking'])}, "
        f"{format_percent(mean['snapshot'])} every {format_duration(seconds['snapshot'])}), as much as "
        f"{bench.scenario.gpus * gap.mean / mean['blocking']:,.1f} GPUs."
    )
    lines = []
    for name in autos:
        lines += [AdviceLine(name, name, half_width_column=f"{name}_half_width")]
        lines += [AdviceLine(f"{name}_closed_form", f"{name}, closed form", is_dashed=True)]
    marks = [AdviceMark(seconds[name], mean[name], f"{name}: {format_duration(seconds[name])}") for name in autos]
    rows = []
    for steps in sorted(set().union(*goodput.values())):
        row = {"steps": steps, "interval_s": steps * autos["blocking"].pattern.step_with_validation}
        for name, found in goodput.items():
            there = steps in found
            row[name] = float(found[steps].mean()) if there else math.nan
            row[f"{name}_half_width"] = mean_half_width(found[steps]) if there else math.nan
            row[f"{name}_closed_form"] = expected_efficiency(runs[name][steps]) if there else math.nan
        rows.append(row)
    stops = [f"a {name} checkpoint stops training for {run.pattern.storage.stall:.4g} s" for name, run in autos.items()]
    written = f"its write takes {autos['snapshot'].pattern.storage.write:.4g} s asynchronously"
    picture = _make_interval_plot(seconds["blocking"], marks, lines=tuple(lines))
    notes = (f"{'; '.join(stops)}, {written}", *closed_form_exclusion_note(autos["blocking"]))
    return bench.make_advice("async-checkpoint", sentence, rows_to_frame(rows), picture, notes)


def _make_blocking_and_async_runs(bench: PolicyBench) -> dict[str, LongRun]:
    spec = bench.section.checkpoint
    if (spec.stall is not None or spec.write is not None) and spec.to is None and spec.mode == "blocking":
        raise InputError(
            "run.checkpoint.stall: a measured blocking stall does not give the times of a "
            "snapshot and an asynchronous write; set run.checkpoint.to (storage bandwidth), e.g. 100 GB/s"
        )

    def run_with_mode(mode: str, **times: float | None) -> LongRun:
        changes = {"every": _RARE, "memory": None, "mode": mode, **times}
        return bench.build_variant(checkpoint=spec.model_copy(update=changes))

    unknown: dict[str, float | None] = {"stall": None, "write": None}
    snapshot = run_with_mode("snapshot", **({} if spec.mode == "snapshot" else unknown))
    blocking = unknown
    if spec.mode == "snapshot" and spec.stall is not None:  # a job that waits for the write includes the rest in it
        blocking = {"stall": snapshot.pattern.storage.stall + snapshot.pattern.storage.write, "write": 0.0}
    elif spec.to is None:
        blocking = {"stall": (spec.stall or 0.0) + (spec.write or 0.0), "write": 0.0}
    runs = ("blocking", run_with_mode("blocking", **blocking)), ("snapshot", snapshot)
    return {name: replace(run, pattern=replace(run.pattern, steps=best_interval_steps(run))) for name, run in runs}


ADVICE: Mapping[str, Callable[..., Advice]] = {
    "interval": advise_on_interval,
    "spares": advise_on_spares,
    "restart": advise_on_restart,
    "straggler": advise_on_straggler,
    "async-checkpoint": advise_on_async_checkpoints,
    "memory": advise_on_memory_copies,
    "reliability": advise_on_reliability,
    "bad-batch": advise_on_defective_nodes,
}
"""Functions that answer the questions of ``simcluster advise``, by name; keyword arguments are a question's options."""

OLD_QUESTIONS = {"behind": "async-checkpoint", "lemons": "bad-batch", "nine": "reliability"}
"""Question by its former name, which is still accepted."""


def advise(
    question: str,
    scenario: Scenario | str,
    *,
    states: ClusterStateSimulator | None = None,
    played: int | None = None,
    workers: Workers = 1,
    store: str | Path | None = None,
    progress: Progress = lambda done, total, failed: None,
    **options: Any,
) -> Advice:
    """Return the answer to a question of ``simcluster advise`` about a scenario.

    ``question`` is a name of ``ADVICE``. ``states`` may be shared by several questions about one scenario. ``workers``,
    ``store`` and ``progress`` are as in ``train``. InputError for an unknown question, or an option of another one.
    """
    question = OLD_QUESTIONS.get(question, question)
    if question not in ADVICE:
        raise InputError(
            f"advice: unknown question {question!r}{did_you_mean(question, ADVICE)}; known: {', '.join(ADVICE)}"
        )
    known = _list_option_names(question)
    for option in options:
        if option not in known:
            others = [name for name in ADVICE if option in _list_option_names(name)]
            whose = f"use it with {', '.join(others)}" if others else f"use {', '.join([*known, 'played'])}"
            raise InputError(f"advice: question {question} has no option {option}; {whose}")
    scenario = load(scenario) if isinstance(scenario, str) else scenario
    with open_run_simulator(workers, store, progress) as player:
        states = states or ClusterStateSimulator(scenario)
        bench = PolicyBench(scenario, states, resolve_run_count(scenario, played, LEAST), player)
        return replace(ADVICE[question](bench, **options), assumed=_list_bench_assumptions(bench))


def _list_bench_assumptions(bench: PolicyBench) -> tuple[str, ...]:
    try:
        run = bench.build_variant()
    except InputError:
        automatic = bench.section.checkpoint.model_copy(update={"every": "auto", "memory": None})
        run = bench.build_variant(checkpoint=automatic)
    return tuple(list_assumptions(bench.section, run))


def _list_option_names(question: str) -> list[str]:
    return [name for name in signature(ADVICE[question]).parameters if name != "bench"]
