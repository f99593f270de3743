"""Metrics of a profiled job (rank states, layers, bandwidths, timeline), and its what-if questions.

At any instant a rank is in one state: computing (a kernel, or an operator of a CPU); else in a collective, waiting
while a member has not arrived and exposed once all have; else copying; else idle. Overlap is |C and N| / |N| as
HolisticTraceAnalysis counts it (C computing, N in collectives, waiting included). The time of a collective counts from
the last arrival on.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.base.errors import InputError
from simcluster.collectives import ALGORITHMS
from simcluster.interop.kineto.communications import find_timeline_axis
from simcluster.interop.kineto.profiled_job import ProfiledJob, ProfiledStep
from simcluster.interop.kineto.rank_profile import TraceLabel
from simcluster.interop.replay import questions
from simcluster.interop.replay.questions import ReplayAnswer, ReplayQuestion
from simcluster.interop.replay.step_graph import COPY, HOST, StepGraph, comm_mask, compute_mask, filter_ops
from simcluster.interop.replay.straggler_metrics import OpLabel, label_replayed_spans
from simcluster.results.span_states import find_inside
from simcluster.results.timeline import Spans
from simcluster.traffic.nccl.case import bus_factor

if TYPE_CHECKING:
    from simcluster.topology import Cluster


@dataclass(frozen=True)
class ProfiledRankTime:
    """Mean seconds per step that a rank spends in each state; the states sum to the job's step.

    ``step`` is the rank's own; ``overlap`` is the share of its time in collectives during which it computed.
    """

    rank: int
    step: float
    computing: float
    exposed: float
    waiting: float
    copying: float
    idle: float
    overlap: float


@dataclass(frozen=True)
class LayerTime:
    """Mean compute seconds per step of a model part, by rank.

    ``peers`` are groups of ranks (indices) that have the part and all the same parts: under a pipeline the ranks of a
    stage, the only ones doing equal work where stages share a part's name (the optimizer, what is in no layer).
    """

    label: TraceLabel
    seconds: Floats
    peers: tuple[tuple[int, ...], ...]

    @property
    def owners(self) -> list[int]:
        """Indices of all ranks that have the model part."""
        return sorted(owner for group in self.peers for owner in group)

    @property
    def mean(self) -> float:
        """Mean compute seconds per step of the ranks that have the model part."""
        return float(self.seconds[self.owners].mean())

    @property
    def slowest(self) -> tuple[int, float] | None:
        """Index of the rank furthest above the mean of its peers, and its excess (0.2 is 20 %), or None."""
        found: list[tuple[float, int]] = []
        for group in self.peers:
            place = max(group, key=lambda owner: float(self.seconds[owner]))
            others = [owner for owner in group if owner != place]
            mean = float(self.seconds[others].mean()) if others else 0.0
            found += [(float(self.seconds[place]) / mean - 1, -place)] if mean else []
        more, place = max(found, default=(0.0, 0))
        return (-place, more) if found else None


def rank_breakdown(job: ProfiledJob) -> list[ProfiledRankTime]:
    """Return every rank's time in each state (computing, exposed, waiting, idle), as means over steps."""
    mean = np.mean([_rank_times(graph, len(job.ranks)) for graph in job.profiled_steps], axis=0)
    return [
        ProfiledRankTime(rank, step, busy, exposed, waiting, copying, idle, both / there if there else 0.0)
        for rank, (step, busy, exposed, waiting, copying, idle, both, there) in zip(
            job.ranks, mean.tolist(), strict=True
        )
    ]


def _rank_times(graph: ProfiledStep, ranks: int) -> list[list[float]]:
    arrived, began, ended = graph.last_arrivals, graph.recorded_start[:, 0], graph.recorded_end[:, 0]
    length, found = float(graph.measured_seconds[0]), []
    columns = [
        comm_mask(graph), compute_mask(graph), filter_ops("types", COPY)(graph),
        ~filter_ops("types", HOST)(graph),
    ]  # fmt: skip
    for worker in range(ranks):
        own = np.flatnonzero(graph.worker == worker)
        comm, computes, copies, device = (own[column[own]] for column in columns)
        edges = np.unique(np.concatenate([began[own], ended[own], arrived[comm]]))
        width = np.diff(edges)

        def on(chosen: Ints, start: Floats, end: Floats, edges: Floats = edges) -> Bools:
            return find_inside(edges, start[chosen], end[chosen])

        busy, there = on(computes, began, ended), on(comm, began, ended)
        late, going = on(comm, began, arrived), on(comm, arrived, ended)
        states = [busy, ~busy & going, ~busy & ~going & late, ~busy & ~there & on(copies, began, ended)]
        seconds = [float(width[state].sum()) for state in states]
        counted = device if graph.on_device else own
        whole = float(ended[counted].max() - began[counted].min()) if len(counted) else 0.0
        idle = max(0.0, length - sum(seconds))
        idle = idle if idle > 1e-9 * length else 0.0  # ignore rounding errors
        found.append([whole, *seconds, idle, float(width[busy & there].sum()), float(width[there].sum())])
    return found


def layer_times(job: ProfiledJob) -> list[LayerTime]:
    """Return the compute time of every model part, in order of first occurrence."""
    found: dict[TraceLabel, Floats] = {}
    parts: dict[int, dict[TraceLabel, None]] = {}  # of every rank
    for graph in job.profiled_steps:
        for op in np.flatnonzero(compute_mask(graph)).tolist():
            label, worker = graph.labels[op], int(graph.worker[op])
            seconds = graph.recorded_end[op, 0] - graph.recorded_start[op, 0]
            found.setdefault(label, np.zeros(len(job.ranks)))[worker] += seconds
            parts.setdefault(worker, {})[label] = None
    equal: dict[frozenset[TraceLabel], list[int]] = {}
    for place, own in sorted(parts.items()):
        equal.setdefault(frozenset(own), []).append(place)
    steps = len(job.graphs)
    return [
        LayerTime(label, seconds / steps, tuple(tuple(group) for own, group in equal.items() if label in own))
        for label, seconds in found.items()
    ]


def slowdown_by_type(job: ProfiledJob, types: Sequence[str]) -> Floats:
    """Return the slowdown caused by each rank's ops of each type alone, as an array [rank, type]."""
    workers = (filter_ops("worker", place) for place in range(len(job.ranks)))
    pairs = itertools.product(workers, [filter_ops("types", optype) for optype in types])
    ideal = job.step_seconds(job.typical_seconds).sum()
    kept = job.seconds_keeping(*(lambda graph, one=one, other=other: one(graph) & other(graph) for one, other in pairs))
    return np.array([float(times.sum() / ideal) for times in kept]).reshape(len(job.ranks), len(types))


@dataclass(frozen=True)
class CollectiveBandwidth:
    """Measured time and bus bandwidth of collectives with equal kind, process group and size.

    ``count`` is their number over all steps. ``seconds`` is the median from the last arrival on, ``fastest`` the
    minimum, ``modelled`` the cluster model's time (None without a cluster). Bus bandwidths of median and model are in
    B/s, NaN if the size is unknown.
    """

    kind: str
    group: str
    ranks: tuple[int, ...]
    bytes: float
    count: int
    seconds: float
    fastest: float
    modelled: float | None
    bus_bandwidth: float
    modelled_bus_bandwidth: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the bandwidths as a dict for JSON, with None for unknown values."""
        values = asdict(self).items()
        return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in values}


def collective_bandwidths(job: ProfiledJob, cluster: Cluster | None = None) -> list[CollectiveBandwidth]:
    """Return times and bandwidths of collectives with two or more recorded members, costliest first.

    Rank n is GPU n of the cluster. Raises InputError if the cluster has fewer GPUs than the job has ranks.
    """
    found: dict[tuple[str, str, tuple[int, ...], float], list[float]] = {}
    for graph in job.profiled_steps:
        began, ended = graph.recorded_start[:, 0].tolist(), graph.recorded_end[:, 0].tolist()
        for members in graph.groups:
            source = graph.sources[members[0]]
            assert source is not None
            assert source.comm is not None
            comm, last = source.comm, max([began[op] for op in members])
            ranks = comm.peer or comm.ranks or tuple(job.ranks[graph.worker[op]] for op in members)
            duration = median([ended[op] for op in members]) - last
            kind = "send" if comm.peer else comm.kind
            found.setdefault((kind, comm.what or comm.group, ranks, comm.bytes), []).append(max(duration, 0.0))
    rows = []
    for (kind, group, ranks, size), taken in found.items():
        seconds, modelled = median(taken), _modelled_seconds(kind, ranks, size, cluster)
        named: Any = "send" if kind == "recv" else kind
        known = named in ALGORITHMS and len(ranks) >= 2
        bandwidth, at_model = (
            size * bus_factor(named, len(ranks)) / each if known and each else math.nan for each in (seconds, modelled)
        )
        rows.append(CollectiveBandwidth(
            kind, group, ranks, size, len(taken), seconds, min(taken), modelled, bandwidth,
            None if modelled is None else at_model,
        ))  # fmt: skip
    return sorted(rows, key=lambda row: -row.count * row.seconds)


def _modelled_seconds(kind: str, ranks: tuple[int, ...], size: float, cluster: Cluster | None) -> float | None:
    if cluster is None or kind not in ALGORITHMS or not size > 0 or len(ranks) < 2:
        return None
    if max(ranks) >= cluster.num_gpus:
        raise InputError(
            f"--cluster: {cluster.name!r} has {cluster.num_gpus} GPUs and a profile is of rank {max(ranks)}; rank n "
            "is GPU n: use a cluster with more GPUs"
        )
    # imported late: takes longer than reading a profile
    from simcluster.studies.bench.collective import collective_times

    return collective_times(cluster, ranks, kind, size).duration


_NUMBER = re.compile(r"(\d+)$")


def profile_spans(job: ProfiledJob) -> Spans:
    """Return a span per replayed kernel, copy and collective (on a CPU: per operator), step after step.

    Host launches are omitted. ``kind`` is the phase of computation, ``layer`` the number in the layer's name,
    ``stream`` the axis that the group's description names (default: dp). ``stage`` is 0; chunk and microbatch are
    unknown (-1).
    """

    def names(graph: ProfiledStep, op: int) -> OpLabel | None:
        source, name, label, optype = graph.sources[op], graph.names[op], graph.labels[op], graph.optype[op]
        layer = int(found[1]) if (found := _NUMBER.search(label.layer)) else -1
        if optype == HOST:
            return None
        if source is not None and (comm := source.comm) is not None:
            size = 0.0 if math.isnan(comm.bytes) else comm.bytes
            return OpLabel(find_timeline_axis(comm), comm.kind, name, layer, comm.what or comm.group, size)
        if optype == COPY:
            way = next((way for way, word in (("d2h", "DtoH"), ("h2d", "HtoD")) if word in name), "")
            return OpLabel(way or "compute", way or "other", name, layer)
        return OpLabel("compute", label.phase, name, layer)

    return label_replayed_spans(job, names)


def answer_profile_question(job: ProfiledJob, question: str) -> ReplayAnswer:
    """Answer one what-if question about a profiled job; raise InputError if it is invalid."""
    return questions.compare_with_recorded(job, question, job_with_changes(job, question))


def job_with_changes(job: ProfiledJob, question: str) -> ProfiledJob:
    """Return a profiled job with the changes of a what-if question applied."""
    return questions.apply_question(job, question, {**QUESTIONS, "rank": QUESTIONS["worker"]}, "for profiles choose")


def _set_rank_typical_times(job: ProfiledJob, value: str, part: str) -> ProfiledJob:
    if not value.isdecimal() or int(value) not in job.ranks:
        known = ", ".join(map(str, job.ranks[:8])) + (", ..." if len(job.ranks) > 8 else "")
        raise InputError(f"what-if {part!r}: give a rank that has a profile: {known}")
    worker = job.ranks.index(int(value))
    return questions.set_typical_times(job, lambda graph: np.asarray((graph.worker == worker) & ~comm_mask(graph)))


def _remove_layer_compute(job: ProfiledJob, value: str, part: str) -> ProfiledJob:
    known = list(dict.fromkeys(label.layer for graph in job.profiled_steps for label in graph.labels if label.layer))
    if value not in known:
        raise InputError(f"what-if {part!r}: no op is of that layer; the profiles name {', '.join(known) or 'none'}")

    def own(graph: StepGraph) -> Bools:
        assert isinstance(graph, ProfiledStep)
        return np.array([label.layer == value for label in graph.labels], dtype=bool) & compute_mask(graph)

    return questions.replace_seconds(job, own, lambda graph: np.zeros_like(graph.seconds))


QUESTIONS = {
    "links": ReplayQuestion(
        "links=2x: collectives and messages twice as fast, from the last arrival on",
        partial(questions.speed_up, chosen=comm_mask),
    ),
    "compute": ReplayQuestion(
        "compute=1.1x: kernels (on a CPU: operators) 1.1 times as fast",
        partial(questions.speed_up, chosen=compute_mask),
    ),
    "host": ReplayQuestion(
        "host=2x: the host launches twice as fast", partial(questions.speed_up, chosen=filter_ops("types", HOST))
    ),
    "worker": ReplayQuestion("worker=RANK: ops of that rank take typical times", _set_rank_typical_times),
    "type": ReplayQuestion("type=OPTYPE: ops of this type take typical times", questions.set_type_typical_times),
    "layer": ReplayQuestion("layer=NAME: compute of this layer takes no time", _remove_layer_compute),
}
"""Questions by key."""
