"""First-order estimate of the step time with other op durations, from the critical path of one run.

Ops keep their order; another path that becomes the longest is not considered.
"""

from __future__ import annotations

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.reference.step_record import OpTable
from simcluster.results.contention import identify_calls, undisturbed_seconds
from simcluster.results.critical_path import CriticalPath
from simcluster.results.simulated_run import Run
from simcluster.results.timeline import Spans


def estimate_path_seconds(path: CriticalPath, run: Run, other: Run) -> float | None:
    """Estimate the length (s per step) of a run's critical path if the ops had another run's planned durations.

    None if that run has other ops or other representatives. Contention changes in proportion to the communication that
    it adds to, and interference with a computation in proportion to the communication concurrent with it.
    """
    ops, spans, number = run.record.ops, path.spans, path.number
    if not _have_equal_ops(ops, other.record.ops):
        return None
    before, after = _planned_seconds(run, spans), _planned_seconds(other, spans)
    ratio = np.divide(after, before, out=np.ones(len(before)), where=before > 0)
    seconds = (path.end - path.start) * ratio[number]
    computes = (spans.kind != spans.word_code("recv")) & (ops.seconds[spans.op] > 0)
    there = np.flatnonzero(computes[number])
    own = number[there]
    op = spans.op[own]
    alone = undisturbed_seconds(ops, run.record.times, op)
    added = spans.end[own] - spans.start[own] - alone
    seconds[there] = alone * ratio[own] + added * _concurrent_ratio(
        spans, ratio, spans.stream != spans.word_code("compute"), own
    )
    return float(seconds.sum()) / path.steps


def _concurrent_ratio(spans: Spans, ratio: Floats, communicates: Bools, number: Ints) -> Floats:
    found = np.ones(len(number))
    for rank in np.unique(spans.rank[number]).tolist():
        low, high = np.searchsorted(spans.rank, [rank, rank + 1]).tolist()
        moving, there = low + np.flatnonzero(communicates[low:high]), np.flatnonzero(spans.rank[number] == rank)
        if not len(moving):
            continue
        edges, place = np.unique([spans.start[moving], spans.end[moving]], return_inverse=True)
        length, own = np.diff(edges), number[there]
        sums = []
        for weight in (np.ones(len(moving)), ratio[moving]):
            rate = np.cumsum(np.bincount(place.ravel(), np.concatenate([weight, -weight])))[:-1]
            until = np.concatenate([[0.0], np.cumsum(rate * length)])
            sums.append(np.interp(spans.end[own], edges, until) - np.interp(spans.start[own], edges, until))
        many, summed = sums
        found[there] = np.divide(summed, many, out=np.ones(len(there)), where=many > 0)
    return found


def _have_equal_ops(one: OpTable, two: OpTable) -> bool:
    if len(one) != len(two) or not np.array_equal(one.lane_rank, two.lane_rank):
        return False
    codes: dict[object, int] = {}
    first, second = (
        np.array([*(codes.setdefault(label[:5], len(codes)) for label in ops.labels), -1])[ops.label]
        for ops in (one, two)
    )
    return np.array_equal(first, second) and np.array_equal(one.lane, two.lane)


def _planned_seconds(run: Run, spans: Spans) -> Floats:
    ops = run.record.ops
    found = spans.end - spans.start
    if not run.hop_by_hop:
        called = identify_calls(run.folding.communicators, ops, spans, run.ranks.start)
        found = run.uncontended_durations.span_seconds(spans, ops, called)
    own = np.flatnonzero((spans.kind != spans.word_code("recv")) & (ops.seconds[spans.op] > 0))
    found[own] = ops.seconds[spans.op[own]]
    return found
