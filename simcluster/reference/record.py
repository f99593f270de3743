"""Record of a simulated step: its ops and their times, as columns.

Timelines, memory, waits and the critical path read nothing else: all ops at once, or the simulated ranks one by one.
Both engines make it: the reference from its nodes, the compiled engine from its tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from simcluster.base.arrays import Bools, Floats, Int32s, Ints
from simcluster.base.clock import Profile
from simcluster.planning.ops import MAIN, MemoryChange
from simcluster.traffic.traffic import Traffic


class Label(NamedTuple):
    """Timeline label of an op: stream, kind, name, layer, bytes; equal ops share one.

    ``bytes`` of a communication; ``axis`` of its group, "" for none. ``traffics`` is what it moves over links, empty
    where that is nothing or takes a given time. ``sensitivity`` is None unless it is a computation.
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
    """Times (s) at which each op was ready, started and ended, and the op that arrived last.

    ``last`` is the last arrival at the op's meeting (of several the one of the lowest rank), else the op itself.
    """

    ready: Floats
    start: Floats
    end: Floats
    last: Ints | Int32s


class Waits(NamedTuple):
    """Dependencies of ops except the previous op of the lane; op i waits for op[first[i]:first[i + 1]]."""

    first: Ints
    op: Ints


@dataclass(frozen=True, eq=False)
class Ops:
    """Per-op columns of all simulated ranks: label, lane, step, microbatch, duration, meeting.

    ``label`` is the place of the op's label in ``labels`` (-1: it leaves no span, as a receive), ``meeting`` the number
    of its meeting (-1 for none; ops with the same number meet) and ``parties`` how many simulated ops meet there (1
    without a meeting). ``seconds`` is how long an op without a meeting takes on its rank with nothing concurrent (its
    slowness included, changes of speed excluded; 0 for communication). ``receives`` are transfer ops, and the ops on
    the receiver that wait for them. Ops of a lane are numbered in their order. ``speeds`` are profiles of ranks whose
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
        """Numbers of the ops of every lane, in order."""
        ends = np.cumsum(np.bincount(self.lane, minlength=len(self.lane_rank)))
        return np.split(np.argsort(self.lane, kind="stable"), ends[:-1])

    @cached_property
    def before(self) -> Ints:
        """Number of the previous op on each op's lane; -1 for the first ones."""
        return _find_previous_ops(self.lane, np.concatenate(self.lanes))

    @cached_property
    def waits(self) -> Waits:
        """Dependencies of ops except the previous op of their lane."""
        return self.make_waits()


@dataclass(frozen=True, eq=False)
class RankOps:
    """Per-op columns of one rank, or of all ranks that run identical ops.

    ``label`` is the index of an op's label in ``labels`` (-1: the op has no span). ``pair`` marks the two ops of a
    transfer whose sender and receiver meet. Per message from another rank, ``receiver`` is the op that waits for it,
    ``sent`` the label of the message, and ``meets`` whether its sender and receiver meet.
    """

    labels: Sequence[Label] = field(repr=False)
    label: Int32s
    lane: Int32s
    on_main: Bools
    step: Int32s
    chunk: Int32s
    microbatch: Int32s
    pair: Bools
    receiver: Ints
    sent: Int32s
    meets: Bools

    @classmethod
    def of(cls, columns: Any, own: Ints | slice, sends: Ints, **others: Any) -> RankOps:
        """Return a rank's ``own`` ops of columns over many ranks; it waits for the messages of the ops ``sends``."""
        of_ops = {name: getattr(columns, name)[own] for name in ("label", "step", "chunk", "microbatch")}
        return cls(labels=columns.labels, sent=columns.label[sends], **of_ops, **others)

    def __len__(self) -> int:
        return len(self.label)

    @cached_property
    def ops_by_lane(self) -> Ints:
        """Numbers of the ops lane by lane, each lane in order."""
        return np.argsort(self.lane, kind="stable")

    @cached_property
    def before(self) -> Ints:
        """Number of the previous op on each op's lane; -1 for the first ones."""
        return _find_previous_ops(self.lane, self.ops_by_lane)


def _find_previous_ops(lane: Int32s, order: Ints) -> Ints:
    follows = np.flatnonzero(np.diff(lane[order]) == 0)
    found = np.full(len(lane), -1, dtype=np.int64)
    found[order[follows + 1]] = order[follows]
    return found


class RankTimes(NamedTuple):
    """Times (s) of a rank's ops, then of the messages that it receives: ready, start, end.

    ``last`` is the rank whose op arrived last at the op's meeting, or that sent the message.
    """

    ready: Floats
    start: Floats
    end: Floats
    last: Int32s


class RankRecord(NamedTuple):
    """Record of one simulated rank; its ``times`` are valid until the next rank is requested."""

    rank: int
    stage: int
    ops: RankOps
    times: RankTimes


@dataclass(frozen=True)
class Record:
    """What an engine returns: the end (s) of every lane, and the times of all ops on demand.

    A lane without ops ends at 0. ``events`` counts what the engine processed, ``engine`` is its name and ``why`` the
    reason for that choice.
    """

    lane_rank: Int32s
    lane_stage: Int32s
    lane_end: Floats
    events: int
    engine: str
    why: str
    make_ops: Callable[[], Ops] = field(repr=False)
    make_times: Callable[[], OpTimes] = field(repr=False)
    make_ranks: Callable[[], Iterator[RankRecord]] | None = field(default=None, repr=False)

    def ranks(self) -> Iterator[RankRecord]:
        """Yield the record of each simulated rank, in rank order."""
        return self.make_ranks() if self.make_ranks else split_by_rank(self.ops, self.times)

    @cached_property
    def ops(self) -> Ops:
        """All ops of the simulated ranks."""
        return self.make_ops()

    @cached_property
    def times(self) -> OpTimes:
        """Times at which each op was ready, began and ended."""
        return self.make_times()


def split_by_rank(ops: Ops, times: OpTimes) -> Iterator[RankRecord]:
    """Split per-op columns of all ranks into one record per rank, in rank order."""
    rank = ops.lane_rank[ops.lane]
    on_main = np.array([name == MAIN for name in ops.lane_name], dtype=bool)
    sends, receivers = ops.receives
    pair = ops.label < 0
    meets = ops.parties[sends] > 1
    pair[sends[meets]] = True
    by_rank, messages = np.argsort(rank, kind="stable"), np.argsort(rank[receivers], kind="stable")
    place = np.empty(len(ops), dtype=np.int64)
    ranks, lanes = np.unique(ops.lane_rank, return_index=True)
    bounds = [np.searchsorted(numbers, [ranks, ranks + 1]).T for numbers in (rank[by_rank], rank[receivers[messages]])]
    for number, lane, (low, high), (first, end) in zip(ranks.tolist(), lanes.tolist(), *bounds, strict=True):
        own, got = by_rank[low:high], messages[first:end]
        place[own] = np.arange(len(own))
        columns = RankOps.of(
            ops, own, sends[got], lane=ops.lane[own], on_main=on_main[ops.lane[own]], pair=pair[own],
            receiver=place[receivers[got]], meets=meets[got],
        )  # fmt: skip
        source = np.concatenate([own, sends[got]])
        ready = np.concatenate([times.ready[own], times.start[sends[got]]])
        last = np.concatenate([rank[times.last[own]], rank[sends[got]]])
        own_times = RankTimes(ready, times.start[source], times.end[source], last)
        yield RankRecord(number, int(ops.lane_stage[lane]), columns, own_times)
