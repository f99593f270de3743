"""A run's critical path with other seconds: what the step would take, to first order, if ops took another time.

Planned, not played: ops keep their places, so it says nothing of another path becoming the longest.
"""

from __future__ import annotations

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.engine.lower import Lowered
from simcluster.programs.program import Program
from simcluster.results.contention import free_seconds
from simcluster.results.critical_path import CriticalPath
from simcluster.results.timeline import Spans


def path_seconds_under(path: CriticalPath, run: Lowered, other: Lowered, first_rank: int = 0) -> float | None:
    """Seconds per step of the path if its spans took as much longer as ``other`` plans them, or None if that is
    another program: ranks that are no longer alike, or other ops.

    A span's part of the path grows in proportion to the span; contention, and compute slowed beside communication, in
    proportion to what they add to.
    """
    if run.program.rows != other.program.rows or run.program.lane_rank != other.program.lane_rank:
        return None
    if [len(rows) for rows in run.program.row_sets] != [len(rows) for rows in other.program.row_sets]:
        return None
    before = _planned(run, path.spans, first_rank)
    after = _planned(other, path.spans, first_rank)
    ratio = np.divide(after, before, out=np.ones(len(before)), where=before > 0)[path.number]
    return float(((path.end - path.start) * ratio).sum()) / path.steps


def _planned(lowered: Lowered, spans: Spans, first_rank: int) -> Floats:
    """Seconds of every span as planned: of rows inside an op what they say, of meetings what free links take."""
    found = free_seconds(lowered, spans, first_rank)
    rows = np.flatnonzero(spans.kind != spans.code("recv"))
    rows = rows[np.lexsort((spans.end[rows], spans.start[rows], spans.op[rows]))]
    op, seconds = _rows_of(lowered.program, np.unique(spans.op[rows]))
    assert len(op) == len(rows), "every span but a receive is a row of its op"
    inside = np.array(lowered.program.meeting)[op] < 0
    found[rows[inside]] = seconds[inside]
    return found


def _rows_of(program: Program, ops: Ints) -> tuple[Ints, Floats]:
    """Op and seconds of every row of these ops, in the order in which they begin."""
    number, seconds = [], []
    known: dict[int, list[float]] = {}
    for op in ops.tolist():
        rows = program.rows[op]
        if rows not in known:
            ordered = sorted(program.row_sets[rows], key=lambda row: (row.start, row.end))
            known[rows] = [row.end - row.start for row in ordered]
        number += [op] * len(known[rows])
        seconds += known[rows]
    return np.array(number, dtype=np.int64), np.array(seconds, dtype=np.float64)
