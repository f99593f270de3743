"""A replayed job of profiled ranks as a timeline: the same columns as a simulated run's."""

from __future__ import annotations

import math
import re

from simcluster.interop.kineto.comm import MESSAGES, Comm
from simcluster.interop.kineto.job import ProfiledJob
from simcluster.interop.kineto.rebuild import Profiled
from simcluster.interop.recorded.graph import COPY, HOST
from simcluster.interop.recorded.spans import OpNames, timeline
from simcluster.results.timeline import Spans

_AXES = {
    axis: re.compile(rf"(?:^|[\W_])(?:{short})(?:$|[\W_])|{word}", re.IGNORECASE)
    for axis, short, word in (
        ("dp", "dp|fsdp|hsdp", "data"), ("tp", "tp", "tensor"), ("pp", "pp", "pipeline|embedding"),
        ("cp", "cp", "context"), ("ep", "ep", "expert"),
    )
}  # fmt: skip
"""Axes, and how frameworks describe their groups: Megatron's TENSOR_MODEL_PARALLEL_GROUP, a device mesh's mesh_tp.
Data first: DATA_PARALLEL_GROUP_WITH_CP and EXPERT_DATA_PARALLEL_GROUP are replicas', as is mesh_dp_shard_cp."""
_NUMBER = re.compile(r"(\d+)$")


def spans(job: ProfiledJob) -> Spans:
    """One span per kernel, copy and collective (of a CPU: operator), as replayed; steps one after the other.

    What the host does to launch is left out.  ``kind`` is the phase of computation, ``layer`` the number in the layer's
    name, ``stream`` the axis that the group's description names, dp where it names none; ``stage`` is 0, chunk and
    microbatch are not known (-1).
    """
    return timeline(job, _names)


def axis_of(comm: Comm) -> str:
    """The stream of the timeline that a collective is on."""
    if comm.kind in MESSAGES:
        return "pp"
    return axis_described(comm) or "dp"


def axis_described(comm: Comm) -> str | None:
    """The axis that the description of a collective's group names; None where it names none."""
    return next((axis for axis, name in _AXES.items() if name.search(comm.what or comm.group)), None)


def _names(graph: Profiled, op: int) -> OpNames | None:
    source, name, label, optype = graph.source[op], graph.names[op], graph.labels[op], graph.optype[op]
    layer = int(found[1]) if (found := _NUMBER.search(label.layer)) else -1
    if optype == HOST:
        return None
    if source is not None and (comm := source.comm) is not None:
        size = 0.0 if math.isnan(comm.bytes) else comm.bytes
        return OpNames(axis_of(comm), comm.kind, name, layer, comm.what or comm.group, size)
    if optype == COPY:
        way = next((way for way, word in (("d2h", "DtoH"), ("h2d", "HtoD")) if word in name), "")
        return OpNames(way or "compute", way or "other", name, layer)
    return OpNames("compute", label.phase, name, layer)
