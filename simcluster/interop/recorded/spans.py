"""A replayed job as a timeline: the same columns as a simulated run's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from simcluster.interop.recorded.lowering import kind_of, stream_of
from simcluster.interop.recorded.recorded import Recorded, RecordedPart
from simcluster.interop.recorded.trace import LAUNCH
from simcluster.results.timeline import COLUMNS, Spans

Job = TypeVar("Job", bound=Recorded)
Begins = dict[int, float]
"""When every step begins."""
Words = dict[str, int]
"""The codes of texts."""


def spans(job: Recorded) -> Spans:
    """One span per recorded op, as replayed; steps one after the other.

    ``ready`` is when the worker was there, ``start`` when the last of the op's group was.  ``name`` is the type in the
    trace, ``chunk`` the chunk of the stage.
    """
    return timeline(job, _columns)


def timeline(job: Job, columns_of: Callable[[Job, RecordedPart, Begins, Words], dict[str, Any]]) -> Spans:
    """The spans of all parts of a job as replayed; steps one after the other."""
    times = job.times(lambda graph: graph.seconds)
    begins = dict(zip(job.steps, np.cumsum(times) - times, strict=True))
    words: Words = {"": 0}
    parts = [columns_of(job, part, begins, words) for part in job.parts]
    columns: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in ("op", *COLUMNS)}
    order = np.lexsort((columns["end"], columns["start"], columns["rank"]))
    return Spans(tuple(words), *(columns[name][order] for name in ("op", *COLUMNS)))


def _columns(job: Recorded, part: RecordedPart, begins: Begins, words: Words) -> dict[str, Any]:
    """The spans of some steps that are alike, step after step."""
    graph, lowered = part.graph, part.lowered
    played, steps = part.play(graph.seconds), len(graph.steps)
    offset = np.array([begins[step] for step in graph.steps])
    count = len(graph)

    def codes(texts: list[str]) -> Any:
        return np.tile([words.setdefault(text, len(words)) for text in texts], steps)

    def each(values: Any) -> Any:
        return np.tile(np.asarray(values), steps)

    columns = {
        "op": each(lowered.last),
        "step": np.repeat(np.array(graph.steps), count),
        "rank": each(np.array(job.ranks)[graph.worker]),
        "stream": codes([stream_of(optype) for optype in graph.optype]),
        "kind": codes([kind_of(optype) for optype in graph.optype]),
        "name": codes(list(graph.optype)),
        "layer": np.full(count * steps, -1),
        "stage": each(graph.stage),
        "chunk": each(np.where(graph.chunk < 0, -1, graph.chunk // graph.stages)),
        "microbatch": each(graph.microbatch),
        "group": np.zeros(count * steps, dtype=np.int64),
        "bytes": np.zeros(count * steps),
        "ready": (played.ready[lowered.first] + offset).T.ravel(),
        "start": (played.start[lowered.last] + offset).T.ravel(),
        "end": (played.end[lowered.last] + offset).T.ravel(),
    }
    there = each([not optype.startswith(LAUNCH) for optype in graph.optype])
    return {name: column[there] for name, column in columns.items()}
