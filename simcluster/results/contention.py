"""What a run loses by concurrency: transfers on shared links, kernels that overlap with communication.

A transfer's links are free if its group alone uses them: no other group of the same kind, no other axis, no other job.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.clock import all_on_grid, on_grid
from simcluster.base.profiles import Profile, stretched
from simcluster.base.runs import begins
from simcluster.reference.record import Ops, OpTimes
from simcluster.results.calls import CallKey
from simcluster.results.timeline import Spans
from simcluster.symmetry.folding import Folding
from simcluster.traffic.fairness import Usage


class FreeCalls:
    """Seconds of calls with the links to themselves; NaN for one of given duration, as a copy is taken to be.

    ``capacity`` is B/s per class of links.
    """

    def __init__(self, folding: Folding, capacity: Sequence[float]) -> None:
        self._folding, self._of_class = folding, capacity
        self._known: dict[CallKey, float] = {}
        self._usages: tuple[int, Sequence[Usage]] = (-1, ())  # of the communicator that was asked for last

    def seconds(self, key: CallKey) -> float:
        """Return the seconds of a call."""
        if key not in self._known:
            self._known[key] = self._alone(key)
        return self._known[key]

    def of_spans(self, spans: Spans, ops: Ops, called: tuple[Ints, list[CallKey]]) -> Floats:
        """Return for every span its seconds on free links: its own duration where that is given, and never more.

        ``called`` is what ``calls_of`` returns for the spans.
        """
        call, keys = called
        free = np.array([*map(self.seconds, keys), np.nan])[call]
        sends = np.flatnonzero((call >= 0) & (spans.kind == spans.code("send")))
        of_send, of_receiver = np.full((2, len(ops)), np.nan)
        of_send[spans.op[sends]] = free[sends]
        sending, receiving = ops.receives
        np.fmax.at(of_receiver, receiving, of_send[sending])  # of several the longest
        received = spans.kind == spans.code("recv")
        free[received] = of_receiver[spans.op[received]]
        return np.asarray(np.fmin(free, spans.end - spans.start))

    def _alone(self, key: CallKey) -> float:
        if key.communicator != self._usages[0]:
            self._usages = key.communicator, self._on_classes(key.communicator)
        try:
            traffics = self._folding.communicators.traffics(key.communicator, key.kind, key.size, self._usages[1])
        except KeyError:
            return math.nan
        return math.nan if key.kind == "copy" else sum(traffic.alone_seconds(self._of_class) for traffic in traffics)

    def _on_classes(self, number: int) -> Sequence[Usage]:
        """Return the usages of a communicator on classes of links, of which those of several links come several times.

        A communicator that is drawn whole is alone in its class, and may use millions of links.
        """
        communicators, classes = self._folding
        if number in communicators.apart:
            return classes.quotient[classes.of_communicator[number]]
        found: list[Usage] = []
        for usage in communicators.usages(number):
            links, flows = zip(*usage, strict=True) if usage else ((), ())
            found.append(tuple(zip(classes.of(np.array(links, dtype=np.int64)).tolist(), flows, strict=True)))
        return found


def slowed_seconds(ops: Ops, times: OpTimes, weights: Mapping[int, int], first_rank: int = 0) -> dict[str, float]:
    """Return the seconds that computation of each kind takes longer because it overlaps with communication.

    Over the whole run, the mean over ranks; ``weights[rank]`` is how many ranks a simulated rank represents.  Changes
    of a rank's own speed are not counted.
    """
    computes = np.array([*(label.sensitivity is not None for label in ops.labels), False])
    op = np.flatnonzero(computes[ops.label])
    rank = ops.lane_rank[ops.lane[op]]
    longer = np.maximum(times.end[op] - times.start[op] - alone_seconds(ops, times, op), 0.0)  # rounding may leave less
    kinds = list(dict.fromkeys(label.kind for label in ops.labels))
    kind = np.array([kinds.index(label.kind) for label in ops.labels], dtype=np.int64)[ops.label[op]]
    own = np.array(list(weights), dtype=np.int64)
    share = np.array(list(weights.values())) / sum(weights.values())
    ranks = first_rank + int(own.max()) + 1
    mine = rank < ranks
    sums = np.bincount((kind * ranks + rank)[mine], longer[mine], len(kinds) * ranks)  # exact: on the clock's grid
    means = (sums.reshape(-1, ranks)[:, first_rank + own] * share).sum(axis=1)
    return {kinds[number]: float(means[number]) for number in np.unique(kind).tolist()}


def alone_seconds(ops: Ops, times: OpTimes, op: Ints) -> Floats:
    """Return the seconds of computations at the speed that their rank has then, with nothing concurrent."""
    seconds = ops.seconds[op]
    if not ops.speeds:
        return seconds
    rank, begin = ops.lane_rank[ops.lane[op]], times.start[op]
    order = np.argsort(rank, kind="stable")
    firsts = begins(rank[order])
    for own in np.split(order, firsts[1:]):
        speed = ops.speeds.get(int(rank[own[0]])) if len(own) else None
        if speed is not None:
            last = float(times.end[op[own]].max())
            edges = np.array(list(_edges(speed, last)))
            factor = np.array([speed.at(edge) for edge in edges[:-1].tolist()])
            place = np.searchsorted(edges, begin[own], side="right") - 1
            end = begin[own] + seconds[own] * factor[place]
            across = end > edges[place + 1]
            end -= begin[own]
            seconds[own] = all_on_grid(end)
            for each in own[across].tolist():  # as few as there are changes of speed
                seconds[each] = on_grid(stretched(speed, float(begin[each]), float(ops.seconds[op[each]])))
    return seconds


def _edges(speed: Profile, last: float) -> Iterator[float]:
    """Generate the instants at which a speed may change, from 0 to the first after ``last``."""
    now = 0.0
    while now <= last:
        yield now
        now = speed.after(now)
    yield now
