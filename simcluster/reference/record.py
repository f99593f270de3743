"""The record of a simulated step: its ops and their times, column by column.

Timelines, memory, waits and the critical path read nothing else.  Both engines make it: the reference from its nodes,
the compiled engine from its tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Floats, Int32s, Ints
from simcluster.base.profiles import Profile
from simcluster.planning.ops import MemoryChange
from simcluster.traffic.traffic import Traffic


class Label(NamedTuple):
    """What an op shows on the timeline; equal ops share one.

    ``bytes`` of a communication; ``axis`` of its group, "" for none.  ``traffics`` is what it moves over links, empty
    where that is nothing or takes a given time.  ``sensitivity`` is None unless it is a computation.
    """

    stream: str
    kind: str
    name: str
    layer: int
    axis: str
    bytes: float
    memory: tuple[MemoryChange, ...] = ()
    traffics: tuple[Traffic, ...] = ()
    sensitivity: float | None = None


class OpTimes(NamedTuple):
    """Seconds per op: when it could have begun alone, began and ended; ``last`` is the op that arrived last at its
    meeting (of several the one of the lowest rank), the op itself elsewhere."""

    ready: Floats
    start: Floats
    end: Floats
    last: Ints | Int32s


class Waits(NamedTuple):
    """What ops wait for besides the op before them on their lane: those of op i are op[first[i]:first[i + 1]]."""

    first: Ints
    op: Ints


@dataclass(frozen=True, eq=False)
class Ops:
    """Columns over ops.

    ``label`` is the place of the op's label in ``labels`` (-1: it leaves no span, as a receive), ``meeting`` the number
    of its meeting (-1 for none; ops with the same number meet) and ``parties`` how many simulated ops meet there (1
    without a meeting).  ``seconds`` is how long an op without a meeting takes on its rank with nothing concurrent (its
    slowness included, changes of speed excluded; 0 for communication).  ``receives`` are transfer ops, and the ops on
    the receiver that wait for them.  Ops of a lane are numbered in their order.  ``speeds`` are profiles of ranks whose
    speed changes.
    """

    labels: Sequence[Label] = field(repr=False)
    label: Int32s
    lane: Int32s
    step: Int32s
    chunk: Int32s
    microbatch: Int32s
    seconds: Floats
    meeting: Int32s
    parties: Int32s
    receives: tuple[Ints, Ints]
    lane_rank: Int32s
    lane_stage: Int32s
    lane_name: Sequence[str]
    speeds: Mapping[int, Profile]
    make_waits: Callable[[], Waits] = field(repr=False)

    def __len__(self) -> int:
        return len(self.label)

    @cached_property
    def lanes(self) -> list[Ints]:
        """The ops of every lane, in order."""
        ends = np.cumsum(np.bincount(self.lane, minlength=len(self.lane_rank)))
        return np.split(np.argsort(self.lane, kind="stable"), ends[:-1])

    @cached_property
    def before(self) -> Ints:
        """The op before each on its lane, -1 for the first ones."""
        order = np.concatenate(self.lanes)
        follows = np.flatnonzero(np.diff(self.lane[order]) == 0)
        found = np.full(len(self), -1, dtype=np.int64)
        found[order[follows + 1]] = order[follows]
        return found

    @cached_property
    def waits(self) -> Waits:
        """What ops wait for."""
        return self.make_waits()


@dataclass(frozen=True)
class Record:
    """What an engine found: when every lane was over (s; 0 for one without ops), and the times of all ops on demand.

    ``events`` counts what the engine processed, ``engine`` is its name and ``why`` the reason for that choice.
    """

    lane_rank: Int32s
    lane_stage: Int32s
    lane_end: Floats
    events: int
    engine: str
    why: str
    make_ops: Callable[[], Ops] = field(repr=False)
    make_times: Callable[[], OpTimes] = field(repr=False)

    @cached_property
    def ops(self) -> Ops:
        """All ops of the simulated ranks."""
        return self.make_ops()

    @cached_property
    def times(self) -> OpTimes:
        """When each of them was ready, began and ended."""
        return self.make_times()
