"""A replayed job as a timeline: the same columns as a simulated run's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from simcluster.interop.recorded.graph import StepGraph, is_communication
from simcluster.interop.recorded.recorded import Recorded
from simcluster.interop.recorded.trace import BACKWARD, FORWARD, LAUNCH, MESSAGES, SCOPES
from simcluster.results.timeline import COLUMNS, Spans

_STREAMS = {"replicas": "dp", "pipeline": "pp", "job": "pp", "worker": "tp"}
_KINDS = {
    FORWARD: "forward",
    BACKWARD: "backward",
    "optimizer": "optimizer",
    "params-all-gather": "all_gather",
    "grads-reduce-scatter": "reduce_scatter",
}


class OpNames(NamedTuple):
    """What the timeline says of an op."""

    stream: str
    kind: str
    name: str
    layer: int = -1
    group: str = ""
    bytes: float = 0.0


def spans(job: Recorded) -> Spans:
    """One span per recorded op, as replayed; steps one after the other.

    ``ready`` is when the worker was there, ``start`` when the last of the op's group was.  ``name`` is the type in the
    trace, ``chunk`` the chunk of the stage.
    """
    return timeline(job, _names)


def timeline(job: Recorded, names: Callable[[Any, int], OpNames | None]) -> Spans:
    """The spans of a job as replayed, steps one after the other, of the ops of its graphs that have names."""
    times = job.times(lambda graph: graph.seconds)
    begins = dict(zip(job.steps, np.cumsum(times) - times, strict=True))
    words = {"": 0}
    parts: list[dict[str, Any]] = []
    for part in job.parts:
        graph, played = part.graph, part.play(part.graph.seconds)
        shown = {op: found for op in range(len(graph)) if (found := names(graph, op)) is not None}
        ops = np.array(list(shown), dtype=np.int64)
        named: dict[str, Any] = dict(zip(OpNames._fields, zip(*shown.values(), strict=True), strict=True))
        for column in ("stream", "kind", "name", "group"):
            named[column] = [words.setdefault(text, len(words)) for text in named[column]]
        columns = named | {
            "op": part.last[ops],
            "rank": np.array(job.ranks)[graph.worker[ops]],
            "stage": graph.stage[ops],
            "chunk": np.where(graph.chunk < 0, -1, graph.chunk // graph.stages)[ops],
            "microbatch": graph.microbatch[ops],
        }
        columns = {name: np.tile(column, len(graph.steps)) for name, column in columns.items()}
        columns["step"] = np.repeat(np.array(graph.steps), len(ops))
        offset = np.array([begins[step] for step in graph.steps])
        for name, own in (("ready", part.first), ("start", part.last), ("end", part.last)):
            columns[name] = (getattr(played, name)[own[ops]] + offset).T.ravel()
        parts.append(columns)
    whole = {name: np.concatenate([part[name] for part in parts]) for name in ("op", *COLUMNS)}
    order = np.lexsort((whole["end"], whole["start"], whole["rank"]))
    return Spans(tuple(words), *(column[order] for column in whole.values()))


def _names(graph: StepGraph, op: int) -> OpNames | None:
    optype = graph.optype[op]
    if optype.startswith(LAUNCH):
        return None
    if optype in MESSAGES:
        return OpNames("pp", optype.rpartition("-")[2], optype)
    kind = _KINDS.get(optype, "all_reduce" if is_communication(optype) else "other")
    return OpNames(_STREAMS[SCOPES[optype]] if optype in SCOPES else "compute", kind, optype)
