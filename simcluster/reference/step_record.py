"""Record of a simulated step: all ops and their times, as column arrays.

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


class OpSpanLabel(NamedTuple):
    """Timeline label of an op: stream, kind, name, layer and bytes; equal ops share a label object.

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
    """Times (s) at which each op became ready, started and ended, and the op whose rank joined last.

    ``last_arrival`` is the op that arrived last (of several, the lowest rank's); without communication, the op itself.
    """

    ready: Floats
    start: Floats
    end: Floats
    last_arrival: Ints | Int32s


class OpDependencies(NamedTuple):
    """Dependencies between ops of different lanes, in CSR form: op i waits for op[offsets[i]:offsets[i + 1]]."""

    offsets: Ints
    op: Ints


@dataclass(frozen=True, eq=False)
class OpTable:
    """Ops of all simulated ranks as columns: label, lane, step, microbatch, duration and communication.

    ``label`` is the index of the op's label in ``labels`` (-1: no span, as for a receive), ``meeting`` the number of
    its communication (-1 for none; ops with the same number take part in one communication) and ``parties`` how many
    simulated ops take part (1 without communication). ``seconds`` is how long an op without communication takes with
    nothing concurrent (with its rank's slowness, without changes of speed; 0 for communication). ``receives`` are
    transfer ops, and the ops on the receiver that wait for them. Ops of a lane are numbered in their order. ``speeds``
    are profiles of ranks whose speed changes.
    """

    labels: Sequence[OpSpanLabel] = field(repr=False)
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
    make_dependencies: Callable[[], OpDependencies] = field(repr=False)

    def __len__(self) -> int:
        return len(self.label)

    @cached_property
    def ops_of_lanes(self) -> list[Ints]:
        """Op numbers of each lane, in execution order."""
        ends = np.cumsum(np.bincount(self.lane, minlength=len(self.lane_rank)))
        return np.split(np.argsort(self.lane, kind="stable"), ends[:-1])

    @cached_property
    def previous_ops(self) -> Ints:
        """Number of the op that precedes each op on the same lane; -1 for the first op of a lane."""
        return _find_previous_ops(self.lane, np.concatenate(self.ops_of_lanes))

    @cached_property
    def dependencies(self) -> OpDependencies:
        """Dependencies of each op, except on the previous op of the same lane."""
        return self.make_dependencies()


@dataclass(frozen=True, eq=False)
class RankOpTable:
    """Ops of one rank as columns, shared by all ranks that run identical ops.

    ``label`` is the index of an op's label in ``labels`` (-1: the op has no span). ``pair`` marks the two ops of a
    transfer whose sender and receiver meet. Per message from another rank, ``receiver`` is the op that waits for it,
    ``sent`` the label of the message, and ``meets`` whether its sender and receiver meet.
    """

    labels: Sequence[OpSpanLabel] = field(repr=False)
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
    def from_columns(cls, columns: Any, own: Ints | slice, sends: Ints, **others: Any) -> RankOpTable:
        """Select one rank's ops, and the messages that the rank receives, from columns over many ranks."""
        of_ops = {name: getattr(columns, name)[own] for name in ("label", "step", "chunk", "microbatch")}
        return cls(labels=columns.labels, sent=columns.label[sends], **of_ops, **others)

    def __len__(self) -> int:
        return len(self.label)

    @cached_property
    def ops_by_lane(self) -> Ints:
        """Op numbers sorted by lane, and in execution order within each lane."""
        return np.argsort(self.lane, kind="stable")

    @cached_property
    def previous_ops(self) -> Ints:
        """Number of the op that precedes each op on the same lane; -1 for the first op of a lane."""
        return _find_previous_ops(self.lane, self.ops_by_lane)


def _find_previous_ops(lane: Int32s, order: Ints) -> Ints:
    follows = np.flatnonzero(np.diff(lane[order]) == 0)
    found = np.full(len(lane), -1, dtype=np.int64)
    found[order[follows + 1]] = order[follows]
    return found


class RankOpTimes(NamedTuple):
    """Ready, start and end times (s) of a rank's ops, followed by those of the messages that the rank receives.

    ``last`` is the rank whose op arrived last at the op's communication, or that sent the message.
    """

    ready: Floats
    start: Floats
    end: Floats
    last: Int32s


class RankRecord(NamedTuple):
    """Record of one simulated rank; the times are valid only until the next rank's record is requested."""

    rank: int
    stage: int
    ops: RankOpTable
    times: RankOpTimes


@dataclass(frozen=True)
class StepRecord:
    """Result of a simulation engine: the end time (s) of every lane, and the times of all ops on demand.

    A lane without ops ends at 0. ``events`` counts what the engine processed, ``engine`` is its name and ``why`` the
    reason for that choice.
    """

    lane_rank: Int32s
    lane_stage: Int32s
    lane_end: Floats
    events: int
    engine: str
    why: str
    make_ops: Callable[[], OpTable] = field(repr=False)
    make_times: Callable[[], OpTimes] = field(repr=False)
    make_ranks: Callable[[], Iterator[RankRecord]] | None = field(default=None, repr=False)

    def iterate_ranks(self) -> Iterator[RankRecord]:
        """Yield the record of each simulated rank, in rank order."""
        return self.make_ranks() if self.make_ranks else split_record_by_rank(self.ops, self.times)

    @cached_property
    def ops(self) -> OpTable:
        """All ops of the simulated ranks, as columns."""
        return self.make_ops()

    @cached_property
    def times(self) -> OpTimes:
        """Times (s) at which each op became ready, started and ended."""
        return self.make_times()


def split_record_by_rank(ops: OpTable, times: OpTimes) -> Iterator[RankRecord]:
    """Split the ops and times of all ranks into one record per rank, in rank order."""
    rank = ops.lane_rank[ops.lane]
    on_main = np.array([name == MAIN for name in ops.lane_name], dtype=bool)
    sends, receivers = ops.receives
    pair, meets = ops.label < 0, ops.parties[sends] > 1
    pair[sends[meets]] = True
    by_rank, messages = np.argsort(rank, kind="stable"), np.argsort(rank[receivers], kind="stable")
    place = np.empty(len(ops), dtype=np.int64)
    ranks, lanes = np.unique(ops.lane_rank, return_index=True)
    bounds = [np.searchsorted(numbers, [ranks, ranks + 1]).T for numbers in (rank[by_rank], rank[receivers[messages]])]
    for number, lane, (low, high), (first, end) in zip(ranks.tolist(), lanes.tolist(), *bounds, strict=True):
        own, got = by_rank[low:high], messages[first:end]
        place[own] = np.arange(len(own))
        columns = RankOpTable.from_columns(
            ops, own, sends[got], lane=ops.lane[own], on_main=on_main[ops.lane[own]], pair=pair[own],
            receiver=place[receivers[got]], meets=meets[got],
        )  # fmt: skip
        source = np.concatenate([own, sends[got]])
        ready = np.concatenate([times.ready[own], times.start[sends[got]]])
        last = np.concatenate([rank[times.last_arrival[own]], rank[sends[got]]])
        own_times = RankOpTimes(ready, times.start[source], times.end[source], last)
        yield RankRecord(number, int(ops.lane_stage[lane]), columns, own_times)
