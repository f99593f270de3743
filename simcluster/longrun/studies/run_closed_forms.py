"""Closed forms for a whole run: shares of time by use, and the best checkpoint interval.

Intervals: blocking, the exact optimum for exponential failures; asynchronous, to first order; with copies in peers'
memory, how often, and how many of them for each on storage, to first order; verified, to first order, with the errors
that only a verification finds. Never more often than a write finishes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds, parse_seconds
from simcluster.longrun import closed_forms
from simcluster.longrun.checkpoint_pattern import MEMORY, STORAGE, SnapshotCost, min_interval_steps
from simcluster.longrun.long_run import FailureMode, LongRun


@dataclass(frozen=True, slots=True)
class Interruption:
    """Mean interruption of training by a failure (s, by phase), and the rate of such failures.

    ``rate`` is that of stops (1/s of exposed time). ``down`` are the seconds in which the job cannot fail again:
    ``detection``, wait for a spare, wrong diagnoses, restart phases that are not exposed. ``exposed`` are those of a
    restart in which it can, ``restart`` those of the whole restart, ``total`` all of them. Lost work is excluded.
    """

    rate: float
    detection: float
    down: float
    exposed: float
    restart: float
    total: float


def mean_interruption(run: LongRun) -> Interruption:
    """Return a run's mean interruption by a restart of the whole job, weighted by the failure rates of its causes."""
    stops = [cause for cause in run.causes if cause.restarts_job]
    rate = sum(cause.rate for cause in stops)
    detect = sum(cause.rate * cause.detect.mean for cause in stops) / rate if rate else 0.0
    level, wrong = STORAGE if run.pattern.memory is None else MEMORY, run.misdiagnosis_share
    seconds = [(part.exposed, part.duration_distribution(level).mean) for part in run.restart]
    exposed = sum(each for open_to, each in seconds if open_to)
    sheltered = sum(each for open_to, each in seconds if not open_to)
    again = (wrong / (1 - wrong) if wrong < 1 else math.inf) * (detect + exposed + sheltered)
    taken, repaired = RepairDemand.from_run(run), sum(cause.rate for cause in stops if cause.repair)
    ready = spare_ready_time(run, round(taken.rate * taken.repair)) * repaired / rate if rate else 0.0
    down = detect + ready + again + sheltered
    return Interruption(rate, detect, down, exposed, exposed + sheltered, down + exposed)


def spare_ready_time(run: LongRun, in_repair: int) -> float:
    """Return the seconds until a spare node is ready, given the number of nodes in repair."""
    times = run.spares.ready_times
    return times[min(in_repair, len(times) - 1)] if times and not run.spares.unlimited else 0.0


@dataclass(frozen=True, slots=True)
class RepairDemand:
    """Node repairs of a run: their rate (1/s of exposed time), mean node-seconds per failure, and causes."""

    rate: float
    repair: float
    causes: tuple[int, ...]
    single_nodes: bool

    @classmethod
    def from_run(cls, run: LongRun) -> RepairDemand:
        """Return a run's repair rate and mean repair time; the rate is 0 if no failure removes a node."""
        known = [(n, each, each.repair.mean) for n, each in enumerate(run.causes) if each.stops_job and each.repair]
        rate = sum(cause.rate for _, cause, _ in known)
        repair = sum(cause.rate * cause.machines * mean for _, cause, mean in known) / rate if rate else 0.0
        single = all(cause.machines == 1 for _, cause, _ in known)
        return cls(rate, repair, tuple(number for number, _, _ in known), single)


def expected_shortage_share(run: LongRun, count: int) -> float:
    """Return the share of time in which a run with ``count`` spares lacks nodes, by the Erlang B formula.

    ``closed_forms.shortage_share`` at the rate of failures over all other time, including outages without exposure.
    """
    stop, taken = mean_interruption(run), RepairDemand.from_run(run)
    rate = taken.rate / (1 + stop.rate * stop.down)
    return closed_forms.shortage_share(count, rate, taken.repair, run.spares.crews) if rate else 0.0


def expected_efficiency(run: LongRun) -> float:
    """Return the share of a run's time spent on kept work, by closed form; nan for checkpoints in memory.

    Exact for exponentially distributed stops and one level of checkpoints, except for the time short of nodes
    (``expected_shortage_share``), which is added.
    """
    pattern, stop = run.pattern, mean_interruption(run)
    if pattern.memory is not None:
        return math.nan
    work, saving, rate = pattern.steps * pattern.step_with_validation, pattern.storage, stop.rate
    stall = saving.stall + pattern.verify
    kept = closed_forms.kept_work_share(work, stall, saving.write, saving.slowed, stop.exposed, stop.down, rate)
    there = 1.0 if run.spares.unlimited else 1 - expected_shortage_share(run, run.spares.count)
    return there * (pattern.step / pattern.step_with_validation) * kept


def two_level_efficiency(run: LongRun) -> float:
    """Return the first-order share of a run's time spent on kept work, for checkpoints in memory and storage.

    Stalls, half of the time between two snapshots of the surviving level, and restarts, all much below the time between
    failures.
    """
    pattern, stop = run.pattern, mean_interruption(run)
    memory = sum(cause.rate for cause in run.causes if cause.restarts_job and not cause.survives)
    stalls = sum({what: s for what, s, _ in cycle}["stall"] + pattern.verify for cycle in pattern.phases_by_snapshot)
    slowed = float(pattern.total_until("write", np.array([pattern.pattern_seconds]))[0])
    work = pattern.steps * pattern.step
    whole = work * pattern.snapshots_per_stored
    lost = memory * work / 2 + (stop.rate - memory) * whole / 2
    there = 1.0 if run.spares.unlimited else 1 - expected_shortage_share(run, run.spares.count)
    return there * (1 - (stalls + slowed) / whole - lost - stop.rate * stop.total)


def closed_form_exclusion_note(run: LongRun) -> tuple[str, ...]:
    """Return a note on what the closed form of a run's efficiency excludes; empty if nothing."""
    effects = {cause.effect for cause in run.causes}
    known = {
        "ages of parts": any(cause.part_lifetimes is not None for cause in run.causes),
        "defective batches": any(cause.defective_batch is not None for cause in run.causes),
        "slow devices": "slow" in effects,
        "pauses": "pause" in effects,
        "silent errors": "silent" in effects,
        "false alarms": "alarm" in effects,
        "missing nodes without which the job continues": bool(run.shrunk_paces),
        "several nodes lost at once": not run.spares.unlimited and any(each.machines > 1 for each in run.causes),
        "planned maintenance": run.maintenance is not None,
    }
    missing = ", ".join(what for what, there in known.items() if there)
    return (f"the closed form excludes: {missing}",) if missing else ()


def break_even_hours(restart: float, slower: float) -> float:
    """Return the hours after which replacing a slow node has paid for the restart: restart / slower."""
    return restart / slower / 3600 if slower > 0 else math.inf


_NEVER = 50.0  # segments this many times as long as the time between failures practically never succeed


@dataclass(frozen=True)
class CheckpointCosts:
    """Snapshot costs in memory and on storage, from which the best checkpoint interval is computed."""

    storage: SnapshotCost
    memory: SnapshotCost | None
    verify: float
    snapshots_per_stored: int | Literal["auto"]


@dataclass(frozen=True)
class CheckpointInterval:
    """Checkpoint interval in steps, number of snapshots per storage write, and notes on how both were chosen."""

    steps: int
    snapshots_per_stored: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RollbackRates:
    """Rates (1/s) of silent errors, and of failures that undo training, by the snapshot tier that survives."""

    memory: float
    storage: float
    silent: float

    @classmethod
    def from_causes(cls, causes: Sequence[FailureMode]) -> RollbackRates:
        """Return the rates at which failure causes undo training, by the snapshot tier that survives."""
        stops = [cause for cause in causes if cause.restarts_job]
        deep = sum(cause.rate for cause in stops if cause.survives == STORAGE)
        silent = sum(cause.rate for cause in causes if cause.effect == "silent")
        return cls(sum(cause.rate for cause in stops) - deep, deep, silent)


def parse_interval(
    every: str, step: float, savings: CheckpointCosts, causes: Sequence[FailureMode]
) -> CheckpointInterval:
    """Return the checkpoint interval for text such as "auto" or "20 min", if a step takes ``step`` s."""
    every, rates = every.strip(), RollbackRates.from_causes(causes)
    if every == "auto":
        return _best_interval(step, savings, rates)
    number, _, unit = every.partition(" ")
    if unit.strip() in ("step", "steps") and number.isdigit() and int(number):
        steps = int(number)
    else:
        steps = max(1, round(parse_seconds(every) / step))
    return CheckpointInterval(steps, _snapshots_per_storage_write(savings, rates))


def best_interval_steps(run: LongRun) -> int:
    """Return the best number of steps between checkpoints; raise InputError if the run has no failures."""
    pattern = run.pattern
    savings = CheckpointCosts(pattern.storage, pattern.memory, pattern.verify, pattern.snapshots_per_stored)
    return _best_interval(pattern.step_with_validation, savings, RollbackRates.from_causes(run.causes)).steps


def _lost_seconds_per_snapshot(saving: SnapshotCost) -> float:
    return saving.stall + saving.slowed * saving.write


def _snapshots_per_storage_write(savings: CheckpointCosts, rates: RollbackRates) -> int:
    if savings.memory is None:
        return 1
    if savings.snapshots_per_stored != "auto":
        return savings.snapshots_per_stored
    if not rates.storage:
        raise InputError(
            "run.checkpoint.memory.storage_every: auto: no failure needs a checkpoint on storage (survives: storage); "
            "set how many snapshots are taken per one on storage, as in 12"
        )
    if not rates.memory:
        return 2
    memory, storage = (
        max(1e-6, savings.verify + _lost_seconds_per_snapshot(saving)) for saving in (savings.memory, savings.storage)
    )
    found = closed_forms.best_snapshots_per_stored(memory, storage, rates.memory, rates.storage)
    return min(100_000, max(2, round(found)))


def _best_interval(step: float, savings: CheckpointCosts, rates: RollbackRates) -> CheckpointInterval:
    verify = savings.verify
    rate = rates.memory + rates.storage + (0.0 if verify else rates.silent)
    if not rate + rates.silent:
        raise InputError(
            "run.checkpoint.every: auto needs run.failures that restart the job; set some, or an interval: 83 steps or "
            "20 min"
        )
    storage, memory = savings.storage, savings.memory
    cycles, lost = _snapshots_per_storage_write(savings, rates), _lost_seconds_per_snapshot(storage)
    if memory is not None:
        # n copies and one checkpoint on storage in n cycles; a failure costs half a cycle, or half a pattern
        spent = (cycles - 1) * (verify + _lost_seconds_per_snapshot(memory)) + verify + lost
        wanted = math.sqrt(2 * spent / (rates.memory / cycles + rates.storage)) / cycles
        how = f"copies in memory, one in {cycles} on storage"
    elif rates.silent and verify:
        wanted = closed_forms.verified_interval(verify, lost, rates.silent, rate)
        how = "a verification before each"
    elif storage.write:
        wanted = closed_forms.async_interval(verify + lost, 0.0, 0.0, 1 / rate)
        how = "asynchronous"
    else:
        wanted = _best_whole_step_interval(step, verify + storage.stall, rate)
        how = "training waits for it"
    return _interval_in_whole_steps(step, savings, cycles, wanted, how)


def _best_whole_step_interval(step: float, checkpoint: float, rate: float) -> float:
    steps = closed_forms.best_interval(checkpoint, 1 / rate) / step
    near = [max(1, math.floor(steps)) * step, max(1, math.ceil(steps)) * step]
    if rate * (near[1] + checkpoint) > _NEVER:
        return near[0]
    return max(near, key=lambda work: closed_forms.kept_share(work, checkpoint, 0.0, 0.0, rate))


def _interval_in_whole_steps(
    step: float, savings: CheckpointCosts, cycles: int, wanted: float, how: str
) -> CheckpointInterval:
    writes = [saving for saving in (savings.storage, savings.memory) if saving is not None]
    least, longest = max(min_interval_steps(saving, step) for saving in writes), max(saving.write for saving in writes)
    steps = max(least, round(wanted / step))
    if round(wanted / step) >= least:
        why = f"the optimum is {format_seconds(wanted)} ({how})"
    elif least > 1:
        why = f"limited by the write, {format_seconds(longest)}; otherwise best: {format_seconds(wanted)} ({how})"
    else:
        why = f"limited to whole steps; otherwise best: {format_seconds(wanted)} ({how})"
    counted = f"{steps} step{'s' * (steps > 1)}"
    return CheckpointInterval(steps, cycles, (f"a checkpoint every {counted}, {format_seconds(steps * step)}: {why}",))
