"""The schedule as its paper draws it, as a timeline for the page: a row per stage, F = I = W = 1 and B = 2."""

from __future__ import annotations

import numpy as np

from simcluster.results.timeline import Spans
from simcluster.schedules import Schedule
from simcluster.schedules.actions import PASS_NAMES
from simcluster.schedules.timing import EqualCosts, play

MOST_ACTIONS = 100_000


def ideal_spans(schedule: Schedule) -> Spans:
    """The schedule's actions as spans, in units of a forward; "rank" is the stage."""
    timing = play(schedule, EqualCosts(F=1.0, B=2.0, I=1.0, W=1.0))
    words = ("compute", "", *PASS_NAMES, *PASS_NAMES.values())
    rows = [
        (
            stage,
            words.index(PASS_NAMES[action.kind]),
            words.index(action.kind),
            action.chunk,
            action.microbatch,
            start,
            end,
        )
        for stage, actions in enumerate(schedule.rows)
        for action, start, end in zip(actions, timing.starts[stage], timing.ends[stage], strict=True)
    ]
    stage, kind, name, chunk, microbatch, start, end = (np.array(column) for column in zip(*rows, strict=True))
    nothing = np.zeros(len(rows), dtype=np.int64)
    return Spans(
        words,
        op=nothing, step=nothing, rank=stage, stream=nothing, kind=kind, name=name, layer=nothing - 1, stage=stage,
        chunk=chunk, microbatch=microbatch, group=nothing + 1, bytes=nothing.astype(np.float64),
        ready=start.astype(np.float64), start=start.astype(np.float64), end=end.astype(np.float64),
    )  # fmt: skip
