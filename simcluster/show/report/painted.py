"""Timelines as the page's script reads them, each kind of their spans with its colour; and a schedule as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simcluster.results.result import Result
from simcluster.results.timeline import Spans
from simcluster.schedules import Schedule
from simcluster.schedules.actions import PASS_NAMES
from simcluster.schedules.timing import EqualCosts, play
from simcluster.show.report import colours
from simcluster.show.report.packing import Blob, packed, some_ranks

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


MOST_SPANS = 1_000_000
"""Of all timelines of a page together."""


def spans_of(runs: Sequence[tuple[str, Result]], blob: Blob) -> dict[str, Any]:
    """What the script reads of timelines alone, by the names of their runs, without what else is known of spans.

    Each run has a program of its own.
    """
    paints: dict[tuple[str, str, int], int] = {}
    most, found = MOST_SPANS // len(runs), []
    for name, result in runs:
        run, _ = bare_run(name, result.spans, result.weights, most, paints, blob)
        found.append({**run, "steps": result.steps})
    return {"runs": found, "paints": painted(paints)}


def bare_run(
    name: str, spans: Spans, weights: Mapping[int, int], most: int, paints: dict[tuple[str, str, int], int], blob: Blob
) -> tuple[dict[str, Any], int]:
    """A timeline and nothing else; and how many ranks are left out."""
    kept, missing = some_ranks(spans, most)
    timeline = with_paints(packed(kept, blob, weights=weights), paints, blob)
    run = {"name": name, "steps": 1, "timeline": timeline, "grid": None, "memory": [], "links": None}
    return run, len(missing)


def painted(paints: Mapping[tuple[str, str, int], int]) -> dict[str, Any]:
    return {**colours.paints(list(paints)), "memory": colours.memory_paints()}


def with_paints(
    timeline: dict[str, Any], places: dict[tuple[str, str, int], int], blob: Blob | None = None
) -> dict[str, Any]:
    """The timeline, each of its kinds of span with the place of its colour among those of the page.

    With a ``blob`` what kinds of span there are goes into it.
    """
    what, texts = timeline["what"], timeline["words"]
    what["paint"] = [
        places.setdefault((texts[stream], texts[kind], max(chunk, 0) if texts[stream] == "compute" else 0), len(places))
        for stream, kind, chunk in zip(what["stream"], what["kind"], what["chunk"], strict=True)
    ]
    if blob is not None:
        whole = {name: np.array(values) for name, values in what.items()}
        timeline["what"] = {
            name: blob.floats(values) if values.dtype.kind == "f" else blob.integers(values)
            for name, values in whole.items()
        }
    return timeline
