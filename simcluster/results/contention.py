"""Communication calls of a run, and the time they lose because they share links and GPUs with other work.

Calls share links with other calls, and GPUs with kernels that overlap with them. A call's links are free if its group
alone uses them: no other group of the same kind, no other axis, no other job.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Floats, Ints, run_starts
from simcluster.base.clock import Profile, round_all_to_tick, round_to_tick, slowed_duration
from simcluster.reference.step_record import OpTable, OpTimes
from simcluster.results.timeline import Spans
from simcluster.symmetry.communicators import Communicators
from simcluster.symmetry.folding import FoldedJob
from simcluster.traffic.fairness import Usage
from simcluster.traffic.traffic import Traffic


class CallKey(NamedTuple):
    """Axis, communicator, kind and size of a communication call; calls with equal keys are identical.

    The axis is a group's, pp for a send, and d2h, h2d or storage for a copy, also to the memory of peers.
    """

    axis: str
    communicator: int
    kind: str
    size: float


SpanCalls = tuple[Ints, list[CallKey]]
"""Position of each span in the list of distinct communication calls (-1: no call), and that list."""


@dataclass(frozen=True, slots=True)
class EqualCalls:
    """Identical communication calls: the total time of all calls, and the link traffic of one call.

    ``axis`` is as in ``CallKey``; ``seconds`` are those of their spans, over all ranks that the simulated ones
    represent; ``traffics`` their bytes over the cluster's links (by the numbers of links).
    """

    axis: str
    seconds: float
    traffics: tuple[Traffic, ...]


def list_link_calls(
    communicators: Communicators, span_calls: SpanCalls, spans: Spans, weights: Mapping[int, int]
) -> Iterator[EqualCalls]:
    """Yield each distinct communication call that uses links, with the total time of all its repetitions.

    ``weights[rank]`` is how many ranks a simulated one represents.
    """
    call, keys = span_calls
    there = np.flatnonzero(call >= 0)
    represented = np.array([weights.get(rank, 0) for rank in range(max(weights) + 1)])
    took = (spans.end - spans.start)[there] * represented[spans.rank[there]]
    for key, seconds in zip(keys, np.bincount(call[there], took, len(keys)).tolist(), strict=True):
        size = communicators.planned_size(key.communicator, key.kind, key.size)
        if size is not None:
            usages = communicators.link_usages(key.communicator)
            yield EqualCalls(key.axis, seconds, communicators.traffic_of_call(key.communicator, key.kind, size, usages))


def identify_calls(communicators: Communicators, ops: OpTable, spans: Spans, first: int) -> SpanCalls:
    """Return the distinct communication calls of a job whose first rank is ``first``, and the call of each span."""
    words = spans.words
    to_stage = np.full(len(ops), -1, dtype=np.int64)
    sends, receivers = ops.receives
    to_stage[sends] = ops.lane_stage[ops.lane[receivers]]
    sent = (spans.kind == spans.word_code("send")) & (to_stage[spans.op] >= 0)
    copied = np.isin(spans.stream, [spans.word_code(way) for way in ("d2h", "h2d", "storage") if way in words])
    sorts = [spans.group != spans.word_code(""), sent, copied]
    sort = np.select(sorts, [0, 1, 2], -1)
    there = np.flatnonzero(sort >= 0)
    sizes, size = np.unique(spans.bytes[there], return_inverse=True)
    where = np.select(sorts, [spans.group, to_stage[spans.op], spans.stream], 0)
    columns = (sort[there], spans.rank[there], size, where[there], spans.kind[there])
    to_peers = any(kind.name == ("copy", "peers") for kind in communicators.kinds)
    shape = [1 + int(column.max(initial=0)) for column in columns]
    distinct, which = np.unique(np.ravel_multi_index(columns, shape), return_inverse=True)
    keys: dict[CallKey, int] = {}
    places = np.zeros(len(distinct), dtype=np.int64)
    for place, (of_sort, own, number, target, kind) in enumerate(zip(*np.unravel_index(distinct, shape), strict=True)):
        rank = first + int(own)
        axis = "pp" if of_sort == 1 else words[target].rstrip("0123456789") if of_sort == 0 else words[target]
        way = "peers" if to_peers and axis == "storage" else axis
        called = ("send", int(communicators.stage_of[rank]), int(target)) if of_sort == 1 else ("copy", way)
        communicator = communicators.find_communicator(called if of_sort else axis, rank)
        key = CallKey(axis, communicator, "copy" if of_sort == 2 else words[kind], float(sizes[number]))
        places[place] = keys.setdefault(key, len(keys))
    call = np.full(len(spans), -1, dtype=np.int64)
    call[there] = places[which]
    return call, list(keys)


class UncontendedDurations:
    """Cache of how long (s) each communication call would take if nothing else used its links.

    NaN for calls of given duration, such as copies. ``capacity`` is B/s per class of links.
    """

    def __init__(self, folding: FoldedJob, capacity: Sequence[float]) -> None:
        self._folding = folding
        self._of_class = capacity
        self._known: dict[CallKey, float] = {}
        self._usages: tuple[int, Sequence[Usage]] = (-1, ())  # of the communicator that was asked for last

    def call_seconds(self, key: CallKey) -> float:
        """Return how long (s) a communication call would take if nothing else used its links."""
        if key not in self._known:
            self._known[key] = self._seconds_alone(key)
        return self._known[key]

    def span_seconds(self, spans: Spans, ops: OpTable, span_calls: SpanCalls) -> Floats:
        """Return the duration (s) of each span if it had its links to itself, at most the simulated duration."""
        call, keys = span_calls
        free = np.array([*map(self.call_seconds, keys), np.nan])[call]
        sends = np.flatnonzero((call >= 0) & (spans.kind == spans.word_code("send")))
        of_send, of_receiver = np.full((2, len(ops)), np.nan)
        of_send[spans.op[sends]] = free[sends]
        sending, receiving = ops.receives
        np.fmax.at(of_receiver, receiving, of_send[sending])  # of several the longest
        received = spans.kind == spans.word_code("recv")
        free[received] = of_receiver[spans.op[received]]
        return np.asarray(np.fmin(free, spans.end - spans.start))

    def _seconds_alone(self, key: CallKey) -> float:
        if key.communicator != self._usages[0]:
            self._usages = key.communicator, self._usages_by_link_class(key.communicator)
        try:
            found = self._folding.communicators.traffic_of_call(key.communicator, key.kind, key.size, self._usages[1])
        except KeyError:
            return math.nan
        return math.nan if key.kind == "copy" else sum(each.solo_seconds(self._of_class) for each in found)

    def _usages_by_link_class(self, number: int) -> Sequence[Usage]:
        communicators, classes = self._folding
        if communicators.seen.of_group[number] in communicators.seen.apart:
            return classes.quotient[classes.of_communicator[number]]
        found: list[Usage] = []
        for usage in communicators.link_usages(number):
            links, flows = zip(*usage, strict=True) if usage else ((), ())
            found.append(tuple(zip(classes.links.values_at(np.array(links, np.int64)).tolist(), flows, strict=True)))
        return found


def interference_seconds(ops: OpTable, times: OpTimes, weights: Mapping[int, int], first_rank: int) -> dict[str, float]:
    """Return how many seconds concurrent communication adds to the computations of each kind.

    Over the whole run, the mean over ranks; ``weights[rank]`` is how many ranks a simulated rank represents. Changes of
    a rank's speed are not counted.
    """
    computes = np.array([*(label.sensitivity is not None for label in ops.labels), False])
    op = np.flatnonzero(computes[ops.label])
    rank = ops.lane_rank[ops.lane[op]]
    longer = np.maximum(times.end[op] - times.start[op] - undisturbed_seconds(ops, times, op), 0.0)  # despite rounding
    kinds = list(dict.fromkeys(label.kind for label in ops.labels))
    kind = np.array([kinds.index(label.kind) for label in ops.labels], dtype=np.int64)[ops.label[op]]
    own = np.array(list(weights), dtype=np.int64)
    share = np.array(list(weights.values())) / sum(weights.values())
    ranks = first_rank + int(own.max()) + 1
    mine = rank < ranks
    sums = np.bincount((kind * ranks + rank)[mine], longer[mine], len(kinds) * ranks)  # exact: on the clock's grid
    means = (sums.reshape(-1, ranks)[:, first_rank + own] * share).sum(axis=1)
    return {kinds[number]: float(means[number]) for number in np.unique(kind).tolist()}


def undisturbed_seconds(ops: OpTable, times: OpTimes, op: Ints) -> Floats:
    """Return the durations (s) that computations would have without concurrent communication."""
    seconds = ops.seconds[op]
    if not ops.speeds:
        return seconds
    rank, begin = ops.lane_rank[ops.lane[op]], times.start[op]
    order = np.argsort(rank, kind="stable")
    firsts = run_starts(rank[order])
    for own in np.split(order, firsts[1:]):
        speed = ops.speeds.get(int(rank[own[0]])) if len(own) else None
        if speed is not None:
            last = float(times.end[op[own]].max())
            edges = np.array(list(_speed_changes(speed, last)))
            factor = np.array([speed.factor_at(edge) for edge in edges[:-1].tolist()])
            place = np.searchsorted(edges, begin[own], side="right") - 1
            end = begin[own] + seconds[own] * factor[place]
            across = end > edges[place + 1]
            end -= begin[own]
            seconds[own] = round_all_to_tick(end)
            for each in own[across].tolist():  # as few as there are changes of speed
                seconds[each] = round_to_tick(slowed_duration(speed, float(begin[each]), float(ops.seconds[op[each]])))
    return seconds


def _speed_changes(speed: Profile, last: float) -> Iterator[float]:
    now = 0.0
    while now <= last:
        yield now
        now = speed.next_change(now)
    yield now
