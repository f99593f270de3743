"""Which collectives of a recorded job ran beside compute, and which held it up."""

from __future__ import annotations

import numpy as np

from simcluster.interop.recorded.trace import BACKWARD, FORWARD, SCOPES, Trace


def beside_compute(trace: Trace, least: float) -> tuple[str, ...]:
    """The collectives that ran beside compute of their own worker."""
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
