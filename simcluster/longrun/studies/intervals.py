"""How often a run takes checkpoints: as it says, or as loses least where it says ``auto``.

Blocking: the exact optimum for exponential failures.  Written behind training: to first order.  With copies in peers'
memory: how often, and how many of them for each on storage, together, to first order.  Verified: to first order, with
the errors that only a verification finds.  Never more often than a write is done.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds, parse_seconds
from simcluster.longrun import closed_forms
from simcluster.longrun.pattern import STORAGE, Saving, steps_of_write
from simcluster.longrun.run import FailureMode, LongRun

_NEVER = 50.0  # segments so many times as long as the time between failures do not come through


@dataclass(frozen=True)
class Savings:
    """What there is to choose an interval for: a checkpoint on storage, copies in memory between, a verification before
    each, and how many cycles a pattern has."""

    storage: Saving
    memory: Saving | None
    verify: float
    cycles: int | Literal["auto"]


@dataclass(frozen=True)
class Interval:
    """Steps between two checkpoints, cycles of a pattern, and where they come from, in words."""

    steps: int
    cycles: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rates:
    """Of what turns a run back, 1/s: what copies in memory survive, what needs storage, what is silent."""

    memory: float
    storage: float
    silent: float

    @classmethod
    def of(cls, causes: Sequence[FailureMode]) -> Rates:
        """Those of causes."""
        stops = [cause for cause in causes if cause.effect == "stop"]
        deep = sum(cause.rate for cause in stops if cause.survives == STORAGE)
        silent = sum(cause.rate for cause in causes if cause.effect == "silent")
        return cls(sum(cause.rate for cause in stops) - deep, deep, silent)


def interval_of(every: str, step: float, savings: Savings, causes: Sequence[FailureMode]) -> Interval:
    """Of steps of so many seconds; InputError for ``auto`` where nothing fails."""
    every, rates = every.strip(), Rates.of(causes)
    if every == "auto":
        return _best(step, savings, rates)
    number, _, unit = every.partition(" ")
    if unit.strip() in ("step", "steps") and number.isdigit() and int(number):
        steps = int(number)
    else:
        steps = max(1, round(parse_seconds(every) / step))
    return Interval(steps, _cycles(savings, rates))


def best_steps(run: LongRun) -> int:
    """Steps between two checkpoints that lose least in a run that saves as this one: what ``auto`` would take.

    InputError if nothing fails.
    """
    pattern = run.pattern
    savings = Savings(pattern.storage, pattern.memory, pattern.verify, pattern.cycles)
    return _best(pattern.each, savings, Rates.of(run.causes)).steps


def _cost(saving: Saving) -> float:
    """Seconds of work that one takes."""
    return saving.stall + saving.slowed * saving.write


def _cycles(savings: Savings, rates: Rates) -> int:
    """As given, else sqrt(l1/l2 C2/C1) (``closed_forms.two_levels``)."""
    if savings.memory is None:
        return 1
    if savings.cycles != "auto":
        return savings.cycles
    if not rates.storage:
        raise InputError(
            "run.checkpoint.memory.storage_every: auto: no failure needs a checkpoint on storage (survives: storage); "
            "say how often one is written all the same: 12"
        )
    if not rates.memory:
        return 2
    memory, storage = (max(1e-6, savings.verify + _cost(saving)) for saving in (savings.memory, savings.storage))
    found = closed_forms.two_levels(memory, storage, rates.memory, rates.storage)
    return min(100_000, max(2, round(found.cycles)))


def _best(step: float, savings: Savings, rates: Rates) -> Interval:
    verify = savings.verify
    rate = rates.memory + rates.storage + (0.0 if verify else rates.silent)
    if not rate + rates.silent:
        raise InputError("run.checkpoint.every: auto: nothing fails, so never; say how often: 83 steps or 20 min")
    storage, memory = savings.storage, savings.memory
    cycles = _cycles(savings, rates)
    if memory is not None:
        # n copies and one checkpoint on storage in n cycles; a failure costs half a cycle, or half a pattern
        spent = (cycles - 1) * (verify + _cost(memory)) + verify + _cost(storage)
        wanted = math.sqrt(2 * spent / (rates.memory / cycles + rates.storage)) / cycles
        how = f"copies in memory, one in {cycles} on storage"
    elif rates.silent and verify:
        wanted = closed_forms.verified_interval(verify, _cost(storage), rates.silent, rate)
        how = "a verification before each"
    elif storage.write:
        wanted = closed_forms.behind_interval(verify + _cost(storage), 0.0, 0.0, 1 / rate)  # the bound: ``_whole``
        how = "written behind training"
    else:
        wanted = _nearby(step, verify + storage.stall, rate)
        how = "training waits for it"
    return _whole(step, savings, cycles, wanted, how)


def _nearby(step: float, checkpoint: float, rate: float) -> float:
    """The exact optimum, in whole steps: the better of the two beside it."""
    steps = closed_forms.best_interval(checkpoint, 1 / rate) / step
    near = [max(1, math.floor(steps)) * step, max(1, math.ceil(steps)) * step]
    if rate * (near[1] + checkpoint) > _NEVER:
        return near[0]
    return max(near, key=lambda work: closed_forms.efficiency(work, checkpoint, 0.0, 0.0, rate))


def _whole(step: float, savings: Savings, cycles: int, wanted: float, how: str) -> Interval:
    """In steps: the nearest, but at least one, and as many as a write takes."""
    writes = [saving for saving in (savings.storage, savings.memory) if saving is not None]
    least, longest = max(steps_of_write(saving, step) for saving in writes), max(saving.write for saving in writes)
    steps = max(least, round(wanted / step))
    if round(wanted / step) >= least:
        why = f"what loses least is {format_seconds(wanted)} ({how})"
    elif least > 1:
        why = f"bound by the write, {format_seconds(longest)}; alone {format_seconds(wanted)} would lose least ({how})"
    else:
        why = f"bound by the step; {format_seconds(wanted)} would lose least ({how})"
    counted = f"{steps} step{'s' * (steps > 1)}"
    return Interval(steps, cycles, (f"a checkpoint every {counted}, {format_seconds(steps * step)}: {why}",))
