"""The engine that simulates a step: the one that the scenario names, or by the number of ops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Literal, NamedTuple, assert_never

import numpy as np

from simcluster.base.arrays import Numbers
from simcluster.planning.ops import Op, StageProgram
from simcluster.scenario.sections import Engine

SECONDS_PER_OP = 6e-5
"""Seconds of SimPy per op of a simulated rank, on one core in 2026."""
SIMPY_SECONDS = 0.5
"""A step that SimPy simulates within this time needs no faster engine."""


class ChosenEngine(NamedTuple):
    """The name of an engine, and the reason for it."""

    engine: Literal["simpy", "compiled", "reference"]
    why: str


def choose_engine(asked: Engine, ops: int, *, in_steps: bool, single: bool) -> ChosenEngine:
    """Return the engine for a step with this number of ops on simulated ranks.

    ``auto`` takes SimPy for a ``single`` step (``simulate``, ``simcluster run``) where that needs less than
    ``SIMPY_SECONDS``.  Studies simulate many steps: they take the compiled engine whatever the size.
    """
    if asked == "simpy" or asked == "compiled" or asked == "reference":
        return ChosenEngine(asked, f"engine: {asked}")
    if asked != "auto":
        assert_never(asked)
    if in_steps:
        return ChosenEngine("compiled", "collectives go round by round")
    if not single:
        return ChosenEngine("compiled", "a study simulates many steps")
    if ops * SECONDS_PER_OP > SIMPY_SECONDS:
        return ChosenEngine("compiled", f"SimPy would take more than {SIMPY_SECONDS:g} s for {ops:,} ops")
    return ChosenEngine("simpy", f"SimPy takes less than {SIMPY_SECONDS:g} s for {ops:,} ops")


def count_ops(programs: Sequence[StageProgram], stages: Numbers) -> int:
    """Return the number of ops on ranks of these stages."""
    items = (chain.from_iterable(program.lanes.values()) for program in programs)
    each = np.array([sum(len(item.segment.ops) for item in own) for own in items])
    return int(each[stages].sum())


def ops_of(program: StageProgram) -> Iterator[Op]:
    """Yield the ops of a program."""
    return (op for items in program.lanes.values() for item in items for op in item.segment.ops)
