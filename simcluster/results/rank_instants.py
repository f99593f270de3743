"""What was played in arrays over ranks, stage by stage, and its instants in the order of each rank's time.  Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.engine.own_works import OwnWorks
from simcluster.engine.rank_times import RankTimes
from simcluster.engine.stage_sweep import Times
from simcluster.planning.ops import Item, Op

_FIELD = 12
"""Bits in which it is counted how many spans of a kind are there; lanes are in order, so there are few at a time."""


class PlayedStage(NamedTuple):
    """What the ranks of a stage do, in order: when it could have begun, began and ended, op by op [rank]; ``received``
    are sends of other stages: the op and its times, and the op here that waits for it; ``own`` are the works of ranks
    that have others than the stage's."""

    ranks: Ints
    ops: list[tuple[Item, Op]]
    nodes: list[int]
    times: list[tuple[Floats, Floats, Floats]]
    received: list[tuple[Item, Op, int, tuple[Floats, Floats, Floats], int]]
    own: OwnWorks | None


def stages_of(found: RankTimes) -> Iterator[PlayedStage]:
    """What was played, stage by stage."""
    sweep = found.sweep
    nodes: list[list[int]] = [[] for _ in sweep.ops]
    for node in range(len(found.times)):
        nodes[sweep.name_of(node)[0]].append(node)  # in the order of their numbers
    received: list[list[tuple[Item, Op, int, tuple[Floats, Floats, Floats], int]]] = [[] for _ in sweep.ops]
    for send, receiver in sweep.received:
        (stage, number), (own, waiting) = sweep.name_of(send), sweep.name_of(receiver)
        received[own].append((*sweep.ops[stage][number], stage, _of_one(found.times[send]), waiting))
    for stage, ranks in enumerate(sweep.stage_ranks):
        times = [_of_one(found.times[node]) for node in nodes[stage]]
        yield PlayedStage(ranks, sweep.ops[stage], nodes[stage], times, received[stage], found.own[stage])


def _of_one(times: Times) -> tuple[Floats, Floats, Floats]:
    """Of the one case that was played [place]."""
    ready, start, end = times
    return ready[0], start[0], end[0]


class Instants:
    """Instants of ranks in the order of time: ``time`` [rank, place in time], of ``columns`` [instant] of [rank]."""

    def __init__(self, columns: Sequence[Floats]) -> None:
        table = np.stack(columns)
        order = np.argsort(table[:, 0], kind="stable")  # nearly that of all ranks, so that little is left to do
        table = np.ascontiguousarray(table[order].T)
        turn = np.argsort(table, axis=1, kind="stable")
        self.time = np.take_along_axis(table, turn, axis=1)
        self._which = order[turn]

    def running(self, change: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Sums of what each instant changes, from it to the next [rank, piece]."""
        return np.cumsum(change[self._which[:, :-1]], axis=1)

    @cached_property
    def places(self) -> Ints:
        """Where each instant is in the order [rank, instant]."""
        found = np.empty_like(self._which)
        np.put_along_axis(found, self._which, np.arange(self._which.shape[1])[None], axis=1)
        return found


class SpanDepths:
    """Spans of a stage whose depth is counted, one field of bits each kind, as begin and end [rank]."""

    def __init__(self) -> None:
        self.fields: dict[str, int] = {}
        self.columns: list[Floats] = []
        self._changes: list[tuple[int, int]] = []

    def add(self, name: str, begin: Floats, end: Floats) -> int:
        """The number of the begin among instants; the end is the next."""
        field = self.fields.setdefault(name, len(self.fields))
        self.columns += [begin, end]
        self._changes += [(field, 1), (field, -1)]
        return len(self.columns) - 2

    def add_row(self, name: str, spans: Sequence[tuple[Floats, Floats]]) -> None:
        """Spans in order, of which those that follow each other at once on all ranks are one."""
        begin: Floats | None = None
        over: Floats | None = None
        for start, end in spans:
            if over is not None and (start is over or np.array_equal(start, over)):
                over = end
                continue
            if begin is not None and over is not None:
                self.add(name, begin, over)
            begin, over = start, end
        if begin is not None and over is not None:
            self.add(name, begin, over)

    def depths(self, instants: Instants, low: int) -> dict[str, Bools]:
        """Which pieces of time are inside spans of each kind [rank, piece]."""
        found = {}
        names = list(self.fields)
        for first in range(0, len(names), 5):
            change = np.zeros(len(self.columns) + low, dtype=np.int64)
            for at, (field, sign) in enumerate(self._changes):
                if first <= field < first + 5:
                    change[low + at] = sign << (_FIELD * (field - first))
            running = instants.running(change)
            for field, name in enumerate(names[first : first + 5]):
                found[name] = (running >> (_FIELD * field)) & ((1 << _FIELD) - 1) > 0
        return found
