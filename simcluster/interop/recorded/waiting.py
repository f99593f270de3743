"""Who waited for whom in a recorded job, as replayed: time in which a rank computes nothing as another is late.

A message or collective begins with its last member; the others wait for that one from when they were there.  Only what
is not hidden behind computation counts, and no instant twice: of waits at once, the one that began first.
"""

from __future__ import annotations

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.interop.recorded.graph import StepGraph, computing
from simcluster.interop.recorded.longest_path import PathTimes
from simcluster.interop.recorded.lowering import RecordedPart
from simcluster.interop.recorded.recorded import Recorded
from simcluster.results.span_states import inside
from simcluster.results.waits import READABLE, WaitMatrix


def waited(job: Recorded) -> Floats:
    """Mean seconds of a step that every recorded rank waits for every other, [waiting, culprit]."""
    count = len(job.ranks)
    seconds = np.zeros((count, count))
    for part in job.parts:
        played = part.play(part.graph.seconds)
        for step in range(len(part.graph.steps)):
            seconds += _of_step(part, played, step, count)
    return seconds / len(job.steps)


def recorded_matrix(job: Recorded) -> WaitMatrix:
    """The same with names: rank by rank, or stage by stage where there are too many ranks to be drawn."""
    seconds = waited(job)
    if len(job.ranks) <= READABLE or job.stages == 1:
        order = np.argsort(job.ranks, kind="stable")
        return WaitMatrix("rank", tuple(str(job.ranks[worker]) for worker in order), seconds[np.ix_(order, order)])
    by_stage = seconds.reshape(job.replicas, job.stages, job.replicas, job.stages).sum(axis=(0, 2)) / job.replicas
    return WaitMatrix("stage", tuple(map(str, range(job.stages))), by_stage)


def longest(matrix: Floats, count: int) -> list[tuple[int, int, float]]:
    """The largest so many (waiting, culprit, seconds), longest first."""
    order = np.argsort(-matrix, axis=None, kind="stable")[:count].tolist()
    pairs = [divmod(int(number), matrix.shape[1]) for number in order]
    return [(one, other, float(matrix[one, other])) for one, other in pairs if matrix[one, other] > 0]


def _of_step(part: RecordedPart, played: PathTimes, step: int, count: int) -> Floats:
    graph = part.graph
    arrival = played.ready[part.first, step]
    waits = _waits(graph, arrival)
    busy = np.flatnonzero(computing(graph))
    begin, end = played.start[part.last, step], played.end[part.last, step]
    found = np.zeros((count, count))
    own_waits = _by_worker(graph.worker[waits[0]], count)
    own_busy = _by_worker(graph.worker[busy], count)
    for worker in range(count):
        mine, own = own_waits[worker], busy[own_busy[worker]]
        if len(mine):
            low, high = arrival[waits[0][mine]], arrival[waits[1][mine]]
            exposed = _exposed(low, high, begin[own], end[own])
            np.add.at(found[worker], graph.worker[waits[1][mine]], exposed)
    return found


def _waits(graph: StepGraph, arrival: Floats) -> tuple[Ints, Ints]:
    """Ops that wait for another member of their group, and the one that each waits for: of equals the first."""
    waiting: list[int] = []
    culprit: list[int] = []
    for group in graph.groups:
        members = np.array(group)
        last = members[int(np.argmax(arrival[members]))]
        early = members[arrival[members] < arrival[last]]
        waiting += early.tolist()
        culprit += [int(last)] * len(early)
    return np.array(waiting, dtype=np.int64), np.array(culprit, dtype=np.int64)


def _by_worker(worker: Ints, count: int) -> list[Ints]:
    """Places in ``worker`` of each worker."""
    order = np.argsort(worker, kind="stable")
    return np.split(order, np.searchsorted(worker[order], np.arange(1, count)))


def _exposed(low: Floats, high: Floats, begin: Floats, end: Floats) -> Floats:
    """Seconds of each interval in which nothing computes and that are not in an interval which began before it."""
    order = np.lexsort((high, low))
    before = np.concatenate([[-np.inf], np.maximum.accumulate(high[order])[:-1]])
    first = np.maximum(low[order], before)
    last = np.maximum(high[order], first)
    edges = np.unique(np.concatenate([first, last, begin, end]))
    idle = np.concatenate([[0.0], np.cumsum(np.diff(edges) * ~inside(edges, begin, end))])  # by each edge
    found = np.empty(len(low))
    found[order] = idle[np.searchsorted(edges, last)] - idle[np.searchsorted(edges, first)]
    return found
