"""A step of profiled ranks as a graph: streams in order, launches by the host, waits, collectives that meet.

Lanes of a rank: "main" (its host: all threads that launch work, in one order) and one for each stream.  On a GPU an op
waits for its launch; on a CPU the host is what computes.  Where PyTorch recorded no events between streams, waits are
inferred (``waits``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.interop.kineto.events import StreamOp
from simcluster.interop.kineto.host import WAIT
from simcluster.interop.kineto.labels import TraceLabel
from simcluster.interop.kineto.match import MatchedOp
from simcluster.interop.kineto.rank_step import RankStep
from simcluster.interop.recorded.graph import COPY, HOST, MAIN, Lane, StepGraph

GAP = 10e-6
"""Seconds between two kernels that nothing explains and that are counted with the second: drain and launch."""


@dataclass(frozen=True)
class Profiled(StepGraph):
    """A step with what its ops were: ``source[op]`` the profile's op (None for the host's own work), ``labels`` what
    part of the model each is of.  ``offset`` is when the step began in the aligned clock; ``left_out`` the seconds of
    gaps by rank that nothing explains, which a replay leaves out."""

    source: tuple[StreamOp | None, ...]
    labels: tuple[TraceLabel, ...]
    names: tuple[str, ...]
    offset: float
    left_out: dict[int, float]
    on_device: bool


@dataclass
class _Columns:
    """The graph in the making, rank by rank, with what was recorded; times in seconds of the step.  ``gaps`` are the
    pauses before ops that count with them."""

    optype: list[str] = field(default_factory=list)
    worker: list[Ints] = field(default_factory=list)
    lanes: dict[Lane, tuple[int, ...]] = field(default_factory=dict)
    after: list[tuple[int, ...]] = field(default_factory=list)
    seconds: list[Floats] = field(default_factory=list)
    began: list[Floats] = field(default_factory=list)
    ended: list[Floats] = field(default_factory=list)
    gaps: list[Floats] = field(default_factory=list)
    source: list[StreamOp | None] = field(default_factory=list)
    labels: list[TraceLabel] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    left_out: dict[int, float] = field(default_factory=dict)


def rebuild(
    step: int,
    steps: Mapping[int, RankStep],
    ops: Mapping[int, Sequence[StreamOp]],
    meet: Sequence[Sequence[MatchedOp]],
    shift: Mapping[int, float],
    *,
    on_device: bool,
) -> Profiled:
    """The graph of a step from those of its ranks; ``shift`` is what to add to each rank's times."""
    begin = min(own.begin + shift[rank] for rank, own in steps.items())
    columns, first = _Columns(), dict[int, int]()
    for worker, (rank, own) in enumerate(steps.items()):
        first[rank] = len(columns.optype) + own.host_ops
        columns.worker.append(np.full(own.host_ops + len(ops[rank]), worker))
        columns.left_out[rank] = _Rank(columns, worker, own, ops[rank], shift[rank] - begin).add()
    groups = tuple([tuple([first[rank] + place for rank, place in each]) for each in meet if len(each) > 1])
    began, ended, seconds, gaps = map(np.concatenate, (columns.began, columns.ended, columns.seconds, columns.gaps))
    _let_meet(groups, began, ended, seconds, gaps)
    nowhere = np.full(len(began), -1)
    return Profiled(
        stages=1, steps=(step,), optype=tuple(columns.optype), worker=np.concatenate(columns.worker),
        microbatch=nowhere, chunk=nowhere, lanes=columns.lanes, after=tuple(columns.after), groups=groups,
        seconds=seconds[:, None], began=began[:, None], ended=ended[:, None], source=tuple(columns.source),
        labels=tuple(columns.labels), names=tuple(columns.names), offset=begin, left_out=columns.left_out,
        on_device=on_device,
    )  # fmt: skip


def _let_meet(groups: Sequence[tuple[int, ...]], began: Floats, ended: Floats, seconds: Floats, gaps: Floats) -> None:
    """Ops that meet take what is left from the last arrival on, and what the last one (of equals the first) needed to
    begin."""
    if not groups:
        return
    ops, sizes = np.array(list(chain.from_iterable(groups))), np.array([len(group) for group in groups])
    group, begins = np.repeat(np.arange(len(groups)), sizes), np.cumsum(sizes) - sizes
    arrived = np.maximum.reduceat(began[ops], begins)[group]
    last = np.flatnonzero(began[ops] == arrived)
    gap = gaps[ops[last[np.unique(group[last], return_index=True)[1]]]]
    seconds[ops] = np.maximum(0.0, ended[ops] - arrived) + gap[group]


class _Rank:
    """One rank's lanes; ``shift`` makes its times those of the step."""

    def __init__(self, columns: _Columns, worker: int, own: RankStep, ops: Sequence[StreamOp], shift: float) -> None:
        self._columns, self._worker, self._own, self._ops, self._shift = columns, worker, own, ops, shift
        self._first = len(columns.optype)  # number of the host's first op; those of the streams are behind the host's

    def add(self) -> float:
        """The host, then the streams; the seconds of gaps that are left out."""
        return self._streams(self._host())

    def _host(self) -> Floats:
        """When each op of the host ends."""
        own, columns, count = self._own, self._columns, self._own.host_ops
        end = np.maximum.accumulate(np.maximum(0.0, own.end + self._shift)) if count else own.end
        begin = np.concatenate([[0.0], end[:-1]]) if count else own.end
        columns.began.append(begin)
        columns.ended.append(end)
        columns.gaps.append(np.zeros(count))
        columns.seconds.append(end - np.maximum(begin, np.minimum(end, own.held + self._shift)))
        names = [name or HOST for name in own.name]
        columns.names += names
        columns.optype += [
            HOST if name in (WAIT, HOST) else label.phase for name, label in zip(names, own.host_labels, strict=True)
        ]
        columns.labels += own.host_labels
        columns.source += [None] * count
        after: list[tuple[int, ...]] = [()] * count
        for number, places in own.after.items():
            after[number] = tuple([self._first + count + place for place in places])
        columns.after += after
        if count:
            columns.lanes[self._worker, MAIN] = tuple(range(self._first, self._first + count))
        return end

    def _streams(self, host_end: Floats) -> float:
        own, columns, ops, base = self._own, self._columns, self._ops, self._first + self._own.host_ops
        start = np.array([op.start for op in ops], dtype=np.float64) + self._shift
        end = np.array([op.end for op in ops], dtype=np.float64) + self._shift
        ready = self._free(end)
        after: list[tuple[int, ...]] = [()] * len(ops)
        launched = np.full(len(ops), -1)
        launched[own.launches[own.launches >= 0]] = np.flatnonzero(own.launches >= 0)
        by_host = np.flatnonzero(launched >= 0)
        ready[by_host] = np.maximum(ready[by_host], host_end[launched[by_host]])
        for place, number in zip(by_host.tolist(), launched[by_host].tolist(), strict=True):
            after[place] = (self._first + number,)
        for place, others in own.waits.items():
            ready[place] = max(ready[place], *(end[other] for other in others))
            after[place] += tuple([base + other for other in others])
        gaps = start - ready
        counted = (gaps > 0) & (gaps <= GAP)
        left = np.cumsum(np.maximum(gaps[~counted], 0.0))  # one after the other
        gaps[~counted] = 0.0
        alone = np.array([op.comm is None for op in ops], dtype=bool)
        columns.began.append(start)
        columns.ended.append(end)
        columns.gaps.append(gaps)
        columns.seconds.append(end - start + np.where(alone, gaps, 0.0))
        columns.names += [op.name for op in ops]
        columns.optype += [_type(op, label) for op, label in zip(ops, own.labels, strict=True)]
        columns.labels += own.labels
        columns.source += ops
        columns.after += after
        return float(left[-1]) if len(left) else 0.0

    def _free(self, end: Floats) -> Floats:
        """When the op before each on its stream was over, 0 for the first; puts the streams' ops on their lanes."""
        places: dict[int, list[int]] = {}
        for place, op in enumerate(self._ops):
            places.setdefault(op.stream, []).append(place)
        free, base = np.zeros(len(end)), self._first + self._own.host_ops
        for stream, own in places.items():
            free[own[1:]] = np.maximum.accumulate(np.maximum(0.0, end[own]))[:-1]
            self._columns.lanes[self._worker, f"stream {stream}"] = tuple([base + place for place in own])
        return free


def _type(op: StreamOp, label: TraceLabel) -> str:
    if op.comm:
        return op.comm.type
    return COPY if op.copy else label.phase
