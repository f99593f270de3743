"""Which steps of a recorded trace are alike, and which of its collectives ran beside compute."""

from __future__ import annotations

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.interop.recorded.trace import BACKWARD, FORWARD, MESSAGES, SCOPES, Trace


def beside_compute(trace: Trace, least: float) -> tuple[str, ...]:
    """The collectives that ran beside compute of their own worker, and so did not hold it up."""
    stages = int(trace.stage.max()) + 1
    place = (trace.step * (int(trace.dp_rank.max()) + 1) + trace.dp_rank) * stages + trace.stage
    _, place = np.unique(place, return_inverse=True)
    end = trace.start_ts + trace.duration
    far = float(end.max() - trace.start_ts.min()) + 1.0
    compute = np.flatnonzero(trace.is_type([FORWARD, BACKWARD]))
    compute = compute[np.lexsort((trace.start_ts[compute], place[compute]))]
    starts, ends = (place[compute] * far + time[compute] for time in (trace.start_ts, end))
    found = []
    for optype in SCOPES:
        ops = np.flatnonzero(trace.is_type([optype]))
        slack = np.minimum(least, trace.duration[ops] / 2)
        first = np.searchsorted(ends, place[ops] * far + trace.start_ts[ops] + slack, side="right")
        last = np.searchsorted(starts, place[ops] * far + end[ops] - slack, side="left")
        if (last > first).any():
            found.append(optype)
    return tuple(found)


def alike_steps(trace: Trace, beside: tuple[str, ...]) -> list[Ints]:
    """Row numbers [op, step] of the steps that have the same ops, in the same order on every main lane."""
    columns = (trace.dp_rank, trace.stage, trace.optype, trace.seq_id, trace.mc, trace.mb_id, trace.gmc)
    order = np.lexsort((*columns[::-1], trace.step))
    bounds = np.flatnonzero(np.diff(trace.step[order])) + 1
    ends = trace.start_ts + trace.duration  # of ops that begin together the one that takes no time is first
    in_order = ~trace.is_type(MESSAGES) & ~trace.is_type(beside)
    alike: dict[tuple[bytes, ...], list[Ints]] = {}
    for rows in np.split(order, bounds):
        sequence = np.lexsort((ends[rows], trace.start_ts[rows], trace.stage[rows], trace.dp_rank[rows]))
        sequence = sequence[in_order[rows][sequence]]
        key = (*(column[rows].tobytes() for column in columns), sequence.tobytes())
        alike.setdefault(key, []).append(rows)
    return [np.stack(found, axis=1) for found in alike.values()]
