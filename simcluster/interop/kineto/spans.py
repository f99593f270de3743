"""A replayed job of profiled ranks as a timeline: the same columns as a simulated run's."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from simcluster.interop.kineto.comm import MESSAGES, Comm
from simcluster.interop.kineto.job import ProfiledJob
from simcluster.interop.kineto.rebuild import COPY, HOST, Profiled
from simcluster.interop.recorded.recorded import RecordedPart
from simcluster.interop.recorded.spans import Begins, Words, timeline
from simcluster.results.timeline import Spans

_AXES = (
    ("tp", re.compile(r"(?:^|[\W_])tp(?:$|[\W_])|tensor", re.IGNORECASE)),
    ("pp", re.compile(r"(?:^|[\W_])pp(?:$|[\W_])|pipeline", re.IGNORECASE)),
    ("cp", re.compile(r"(?:^|[\W_])cp(?:$|[\W_])|context", re.IGNORECASE)),
    ("ep", re.compile(r"(?:^|[\W_])ep(?:$|[\W_])|expert", re.IGNORECASE)),
)
"""Axes, and how frameworks describe their groups: Megatron's TENSOR_MODEL_PARALLEL_GROUP, a device mesh's mesh_tp."""
_NUMBER = re.compile(r"(\d+)$")


def spans(job: ProfiledJob) -> Spans:
    """One span per kernel, copy and collective (of a CPU: operator), as replayed; steps one after the other.

    What the host does to launch is left out.  ``kind`` is the phase of computation, ``layer`` the number in the layer's
    name, ``stream`` the axis that the group's description names, dp where it names none; ``stage`` is 0, chunk and
    microbatch are not known (-1).
    """
    return timeline(job, _columns)


def axis_of(comm: Comm) -> str:
    """The stream of the timeline that a collective is on."""
    if comm.kind in MESSAGES:
        return "pp"
    return next((axis for axis, name in _AXES if name.search(comm.what or comm.group)), "dp")


def _columns(job: ProfiledJob, part: RecordedPart, begins: Begins, words: Words) -> dict[str, Any]:
    """The spans of a step."""
    graph, lowered = part.graph, part.lowered
    assert isinstance(graph, Profiled)
    played, begin = part.play(graph.seconds), begins[graph.steps[0]]
    shown = np.array([op for op, kind in enumerate(graph.optype) if kind != HOST], dtype=np.int64)
    count = len(shown)
    named = [_names(graph, op) for op in shown.tolist()]

    def codes(place: int) -> Any:
        return np.array([words.setdefault(each[place], len(words)) for each in named], dtype=np.int64)

    sources = [graph.source[op] for op in shown.tolist()]
    sizes = [each.comm.bytes if each and each.comm else 0.0 for each in sources]
    nothing = np.full(count, -1, dtype=np.int64)
    return {
        "op": lowered.last[shown],
        "step": np.full(count, graph.steps[0], dtype=np.int64),
        "rank": np.array(job.ranks, dtype=np.int64)[graph.worker[shown]],
        "stream": codes(0),
        "kind": codes(1),
        "name": codes(2),
        "layer": np.array([_layer(graph.labels[op].layer) for op in shown.tolist()], dtype=np.int64),
        "stage": np.zeros(count, dtype=np.int64),
        "chunk": nothing,
        "microbatch": nothing,
        "group": codes(3),
        "bytes": np.nan_to_num(np.array(sizes, dtype=np.float64)),
        "ready": played.ready[lowered.first[shown], 0] + begin,
        "start": played.start[lowered.last[shown], 0] + begin,
        "end": played.end[lowered.last[shown], 0] + begin,
    }


def _names(graph: Profiled, op: int) -> tuple[str, str, str, str]:
    """Stream, kind, name and group."""
    source, name = graph.source[op], graph.names[op]
    if source is not None and source.comm is not None:
        return axis_of(source.comm), source.comm.kind, name, source.comm.what or source.comm.group
    if graph.optype[op] == COPY:
        for direction, word in (("d2h", "DtoH"), ("h2d", "HtoD")):
            if word in name:
                return direction, direction, name, ""
        return "compute", "other", name, ""
    return "compute", graph.labels[op].phase, name, ""


def _layer(name: str) -> int:
    found = _NUMBER.search(name)
    return int(found[1]) if found else -1
