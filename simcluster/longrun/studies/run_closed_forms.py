"""Closed forms of a whole run: shares of its time, and its best checkpoint interval.

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
from simcluster.longrun.pattern import MEMORY, STORAGE, SnapshotCost, min_interval_steps
from simcluster.longrun.run import FailureMode, LongRun


@dataclass(frozen=True, slots=True)
class Interruption:
    """Mean time (s) that a failure interrupts a run, by phase, and the rate of such failures.

    ``rate`` of stops (1/s of exposed time), ``detect``, the seconds in which the job cannot fail again (``down``: also
    until a spare is ready and wrong diagnoses are through), those of a restart in which it can (``exposed``), the
    ``restart`` alone, and the ``whole`` until training resumes; lost work is not included.
    """

    rate: float
    detect: float
    down: float
    exposed: float
    restart: float
    whole: float


def mean_interruption(run: LongRun) -> Interruption:
    """Return the mean interruption of a run by a failure, over causes weighted by rate."""
    stops = [cause for cause in run.causes if cause.stops]
    rate = sum(cause.rate for cause in stops)
    detect = sum(cause.rate * cause.detect.mean for cause in stops) / rate if rate else 0.0
    level = STORAGE if run.pattern.memory is None else MEMORY
    seconds = [(part.exposed, part.duration_law(level).mean) for part in run.restart]
    exposed = sum(each for open_to, each in seconds if open_to)
    sheltered = sum(each for open_to, each in seconds if not open_to)
    again = (run.wrong / (1 - run.wrong) if run.wrong < 1 else math.inf) * (detect + exposed + sheltered)
    taken = RepairDemand.of_run(run)
    ready = spare_ready_time(run, round(taken.rate * taken.repair)) * taken.rate / rate if rate else 0.0
    down = detect + ready + again + sheltered
    return Interruption(rate, detect, down, exposed, exposed + sheltered, down + exposed)


def spare_ready_time(run: LongRun, out: int) -> float:
    """Return the seconds until a spare node is ready that is taken while ``out`` nodes are in repair."""
    times = run.spares.ready_times
    return times[min(out, len(times) - 1)] if times and not run.spares.unlimited else 0.0


@dataclass(frozen=True, slots=True)
class RepairDemand:
    """Node repairs of a run: rate (1/s of exposed time), mean node-seconds, causes; ``single``: one node each."""

    rate: float
    repair: float
    causes: tuple[int, ...]
    single: bool

    @classmethod
    def of_run(cls, run: LongRun) -> RepairDemand:
        """Return the repair rate and mean repair time of a run; rate 0 if no failure removes a node."""
        known = [(n, cause, cause.repair.mean) for n, cause in enumerate(run.causes) if cause.stops and cause.repair]
        rate = sum(cause.rate for _, cause, _ in known)
        repair = sum(cause.rate * cause.machines * mean for _, cause, mean in known) / rate if rate else 0.0
        single = all(cause.machines == 1 for _, cause, _ in known)
        return cls(rate, repair, tuple(number for number, _, _ in known), single)


def expected_shortage(run: LongRun, count: int) -> float:
    """Return the share of time in which a run with ``count`` spares lacks nodes, by Erlang B.

    ``closed_forms.shortage_share`` at the rate of failures over all other time, including outages without exposure.
    """
    stop, taken = mean_interruption(run), RepairDemand.of_run(run)
    rate = taken.rate / (1 + stop.rate * stop.down)
    return closed_forms.shortage_share(count, rate, taken.repair, run.spares.crews) if rate else 0.0


def expected_efficiency(run: LongRun) -> float:
    """Return the share of a run's time that is kept work, by closed form; nan with copies in memory.

    Exact for stops by exponential laws and one level of checkpoints, except for the time short of nodes
    (``expected_shortage``), which is added.
    """
    pattern, stop = run.pattern, mean_interruption(run)
    if pattern.memory is not None:
        return math.nan
    work, saving, rate = pattern.steps * pattern.step_with_validation, pattern.storage, stop.rate
    stall = saving.stall + pattern.verify
    kept = closed_forms.kept_work_share(work, stall, saving.write, saving.slowed, stop.exposed, stop.down, rate)
    there = 1.0 if run.spares.unlimited else 1 - expected_shortage(run, run.spares.count)
    return there * (pattern.step / pattern.step_with_validation) * kept


def two_level_efficiency(run: LongRun) -> float:
    """Return the share of a run's time that is kept work with copies in memory, to first order.

    Stalls, half of the time between two snapshots of the surviving level, and restarts, all much below the time between
    failures.
    """
    pattern, stop = run.pattern, mean_interruption(run)
    memory = sum(cause.rate for cause in run.causes if cause.stops and not cause.survives)
    stalls = sum({what: s for what, s, _ in cycle}["stall"] + pattern.verify for cycle in pattern.phases)
    slowed = float(pattern.spent_until("write", np.array([pattern.period]))[0])
    work = pattern.steps * pattern.step
    whole = work * pattern.cycles
    lost = memory * work / 2 + (stop.rate - memory) * whole / 2
    there = 1.0 if run.spares.unlimited else 1 - expected_shortage(run, run.spares.count)
    return there * (1 - (stalls + slowed) / whole - lost - stop.rate * stop.whole)


def excluded_note(run: LongRun) -> tuple[str, ...]:
    """Return a note that lists what the closed form of a run's efficiency does not cover, if anything."""
    effects = {cause.effect for cause in run.causes}
    known = {
        "ages of parts": any(cause.lives is not None for cause in run.causes),
        "defective batches": any(cause.bad is not None for cause in run.causes),
        "slow devices": "slow" in effects,
        "pauses": "pause" in effects,
        "silent errors": "silent" in effects,
        "false alarms": "alarm" in effects,
        "missing nodes without which the job continues": bool(run.short),
        "several nodes lost at once": not run.spares.unlimited and any(each.machines > 1 for each in run.causes),
        "planned maintenance": run.maintenance is not None,
    }
    missing = ", ".join(what for what, there in known.items() if there)
    return (f"the closed form excludes: {missing}",) if missing else ()


def break_even_hours(restart: float, slower: float) -> float:
    """Return the hours of work after which replacing a slow node pays for the restart: restart / slower."""
    return restart / slower / 3600 if slower > 0 else math.inf


_NEVER = 50.0  # segments this many times as long as the time between failures practically never succeed


@dataclass(frozen=True)
class CheckpointCosts:
    """Checkpoint costs that determine the best interval; ``cycles`` is the number of snapshots per stored one."""

    storage: SnapshotCost
    memory: SnapshotCost | None
    verify: float
    cycles: int | Literal["auto"]


@dataclass(frozen=True)
class CheckpointInterval:
    """Checkpoint interval in steps, snapshots per one on storage (``cycles``), and how it was chosen."""

    steps: int
    cycles: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RollbackRates:
    """Rates (1/s) of failures that set a run back, by the snapshot that survives, and of silent errors."""

    memory: float
    storage: float
    silent: float

    @classmethod
    def of_causes(cls, causes: Sequence[FailureMode]) -> RollbackRates:
        """Return the rollback rates of failure causes by what survives them."""
        stops = [cause for cause in causes if cause.effect == "stop"]
        deep = sum(cause.rate for cause in stops if cause.survives == STORAGE)
        silent = sum(cause.rate for cause in causes if cause.effect == "silent")
        return cls(sum(cause.rate for cause in stops) - deep, deep, silent)


def parse_interval(
    every: str, step: float, savings: CheckpointCosts, causes: Sequence[FailureMode]
) -> CheckpointInterval:
    """Return the checkpoint interval that text such as "auto" or "20 min" gives for steps of ``step`` s."""
    every, rates = every.strip(), RollbackRates.of_causes(causes)
    if every == "auto":
        return _best_interval(step, savings, rates)
    number, _, unit = every.partition(" ")
    if unit.strip() in ("step", "steps") and number.isdigit() and int(number):
        steps = int(number)
    else:
        steps = max(1, round(parse_seconds(every) / step))
    return CheckpointInterval(steps, _cycles_per_pattern(savings, rates))


def best_steps(run: LongRun) -> int:
    """Return the best number of steps between checkpoints; InputError if nothing fails."""
    pattern = run.pattern
    savings = CheckpointCosts(pattern.storage, pattern.memory, pattern.verify, pattern.cycles)
    return _best_interval(pattern.step_with_validation, savings, RollbackRates.of_causes(run.causes)).steps


def _snapshot_seconds(saving: SnapshotCost) -> float:
    return saving.stall + saving.slowed * saving.write


def _cycles_per_pattern(savings: CheckpointCosts, rates: RollbackRates) -> int:
    if savings.memory is None:
        return 1
    if savings.cycles != "auto":
        return savings.cycles
    if not rates.storage:
        raise InputError(
            "run.checkpoint.memory.storage_every: auto: no failure needs a checkpoint on storage (survives: storage); "
            "set a number of snapshots per stored one, as in 12"
        )
    if not rates.memory:
        return 2
    memory, storage = (
        max(1e-6, savings.verify + _snapshot_seconds(saving)) for saving in (savings.memory, savings.storage)
    )
    found = closed_forms.best_two_levels(memory, storage, rates.memory, rates.storage)
    return min(100_000, max(2, round(found.cycles)))


def _best_interval(step: float, savings: CheckpointCosts, rates: RollbackRates) -> CheckpointInterval:
    verify = savings.verify
    rate = rates.memory + rates.storage + (0.0 if verify else rates.silent)
    if not rate + rates.silent:
        raise InputError("run.checkpoint.every: auto needs run.failures; set it, or an interval: 83 steps or 20 min")
    storage, memory = savings.storage, savings.memory
    cycles = _cycles_per_pattern(savings, rates)
    if memory is not None:
        # n copies and one checkpoint on storage in n cycles; a failure costs half a cycle, or half a pattern
        spent = (cycles - 1) * (verify + _snapshot_seconds(memory)) + verify + _snapshot_seconds(storage)
        wanted = math.sqrt(2 * spent / (rates.memory / cycles + rates.storage)) / cycles
        how = f"copies in memory, one in {cycles} on storage"
    elif rates.silent and verify:
        wanted = closed_forms.verified_interval(verify, _snapshot_seconds(storage), rates.silent, rate)
        how = "a verification before each"
    elif storage.write:
        wanted = closed_forms.async_interval(verify + _snapshot_seconds(storage), 0.0, 0.0, 1 / rate)
        how = "asynchronous"
    else:
        wanted = _best_whole_interval(step, verify + storage.stall, rate)
        how = "training waits for it"
    return _round_interval(step, savings, cycles, wanted, how)


def _best_whole_interval(step: float, checkpoint: float, rate: float) -> float:
    steps = closed_forms.best_interval(checkpoint, 1 / rate) / step
    near = [max(1, math.floor(steps)) * step, max(1, math.ceil(steps)) * step]
    if rate * (near[1] + checkpoint) > _NEVER:
        return near[0]
    return max(near, key=lambda work: closed_forms.efficiency(work, checkpoint, 0.0, 0.0, rate))


def _round_interval(step: float, savings: CheckpointCosts, cycles: int, wanted: float, how: str) -> CheckpointInterval:
    writes = [saving for saving in (savings.storage, savings.memory) if saving is not None]
    least, longest = max(min_interval_steps(saving, step) for saving in writes), max(saving.write for saving in writes)
    steps = max(least, round(wanted / step))
    if round(wanted / step) >= least:
        why = f"the optimum is {format_seconds(wanted)} ({how})"
    elif least > 1:
        why = f"bound by the write, {format_seconds(longest)}; else the optimum is {format_seconds(wanted)} ({how})"
    else:
        why = f"bound by the step; the optimum is {format_seconds(wanted)} ({how})"
    counted = f"{steps} step{'s' * (steps > 1)}"
    return CheckpointInterval(steps, cycles, (f"a checkpoint every {counted}, {format_seconds(steps * step)}: {why}",))
