"""Metrics of a profiled job (rank states, model parts, bandwidths, timeline), and what-if questions.

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
from simcluster.interop.kineto.rank_profile import PhaseLayer
from simcluster.interop.replay import questions
from simcluster.interop.replay.questions import ReplayAnswer, ReplayQuestion, speed_up_ops
from simcluster.interop.replay.step_graph import COPY, HOST, StepGraph, communication_mask, compute_mask, make_op_filter
from simcluster.interop.replay.straggler_metrics import TimelineLabel, make_labelled_spans
from simcluster.results.span_states import intervals_inside
from simcluster.results.timeline import Spans
from simcluster.traffic.nccl.tuner_query import bus_factor

if TYPE_CHECKING:
    from simcluster.topology import Cluster


@dataclass(frozen=True)
class RankStateSeconds:
    """Time of a rank by state (computing, waiting, ...), in mean seconds per step; the states add up to the step.

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
class ModelPartTime:
    """Compute time of one model part (a phase of a layer) on each rank, in mean seconds per step.

    ``peer_groups`` are groups of ranks (indices) that have the part and all the same parts: under a pipeline the ranks
    of a stage, the only ones doing equal work where stages share a part's name (the optimizer, what is in no layer).
    """

    label: PhaseLayer
    seconds: Floats
    peer_groups: tuple[tuple[int, ...], ...]

    @property
    def rank_indices(self) -> list[int]:
        """Indices of all ranks that have the model part."""
        return sorted(owner for group in self.peer_groups for owner in group)

    @property
    def mean_seconds(self) -> float:
        """Mean compute seconds per step of the ranks that have the model part."""
        return float(self.seconds[self.rank_indices].mean())

    @property
    def slowest_rank(self) -> tuple[int, float] | None:
        """(Rank index, excess) of the rank furthest above its peers' mean (0.2: 20 % slower); None if unknown."""
        found: list[tuple[float, int]] = []
        for group in self.peer_groups:
            place = max(group, key=lambda owner: float(self.seconds[owner]))
            others = [owner for owner in group if owner != place]
            mean = float(self.seconds[others].mean()) if others else 0.0
            found += [(float(self.seconds[place]) / mean - 1, -place)] if mean else []
        more, place = max(found, default=(0.0, 0))
        return (-place, more) if found else None


def rank_state_seconds(job: ProfiledJob) -> list[RankStateSeconds]:
    """Return every rank's mean time per step in each state (computing, exposed communication, waiting, idle)."""
    mean = np.mean([_step_state_seconds(graph, len(job.ranks)) for graph in job.profiled_steps], axis=0)
    rows = zip(job.ranks, mean.tolist(), strict=True)
    return [
        RankStateSeconds(rank, step, busy, exposed, waiting, copying, idle, both / there if there else 0.0)
        for rank, (step, busy, exposed, waiting, copying, idle, both, there) in rows
    ]


def _step_state_seconds(graph: ProfiledStep, num_ranks: int) -> list[list[float]]:
    arrived, began, ended = graph.last_arrival_times, graph.recorded_start[:, 0], graph.recorded_end[:, 0]
    length, found = float(graph.measured_seconds[0]), []
    columns = [
        communication_mask(graph), compute_mask(graph), make_op_filter("types", COPY)(graph),
        ~make_op_filter("types", HOST)(graph),
    ]  # fmt: skip
    for worker in range(num_ranks):
        own = np.flatnonzero(graph.worker == worker)
        comm, computes, copies, device = (own[column[own]] for column in columns)
        edges = np.unique(np.concatenate([began[own], ended[own], arrived[comm]]))
        width = np.diff(edges)

        def mask_running(chosen: Ints, start: Floats, end: Floats, edges: Floats = edges) -> Bools:
            return intervals_inside(edges, start[chosen], end[chosen])

        busy, there = mask_running(computes, began, ended), mask_running(comm, began, ended)
        late, going = mask_running(comm, began, arrived), mask_running(comm, arrived, ended)
        states = [busy, ~busy & going, ~busy & ~going & late, ~busy & ~there & mask_running(copies, began, ended)]
        seconds = [float(width[state].sum()) for state in states]
        counted = device if graph.on_device else own
        whole = float(ended[counted].max() - began[counted].min()) if len(counted) else 0.0
        idle = max(0.0, length - sum(seconds))
        idle = idle if idle > 1e-9 * length else 0.0  # ignore rounding errors
        found.append([whole, *seconds, idle, float(width[busy & there].sum()), float(width[there].sum())])
    return found


def model_part_times(job: ProfiledJob) -> list[ModelPartTime]:
    """Return the compute time of every model part, in the order in which the parts first occur."""
    found: dict[PhaseLayer, Floats] = {}
    parts: dict[int, dict[PhaseLayer, None]] = {}  # of every rank
    for graph in job.profiled_steps:
        for op in np.flatnonzero(compute_mask(graph)).tolist():
            label, worker = graph.labels[op], int(graph.worker[op])
            seconds = graph.recorded_end[op, 0] - graph.recorded_start[op, 0]
            found.setdefault(label, np.zeros(len(job.ranks)))[worker] += seconds
            parts.setdefault(worker, {})[label] = None
    equal: dict[frozenset[PhaseLayer], list[int]] = {}
    for place, own in sorted(parts.items()):
        equal.setdefault(frozenset(own), []).append(place)
    steps = len(job.graphs)
    return [
        ModelPartTime(label, seconds / steps, tuple(tuple(group) for own, group in equal.items() if label in own))
        for label, seconds in found.items()
    ]


def slowdown_by_rank_and_type(job: ProfiledJob, types: Sequence[str]) -> Floats:
    """Return the slowdown that one rank's ops of one type alone cause, as an array [rank, op type]."""
    workers = (make_op_filter("worker", place) for place in range(len(job.ranks)))
    pairs = itertools.product(workers, [make_op_filter("types", optype) for optype in types])
    ideal = job.replay_step_seconds(job.typical_op_seconds).sum()
    kept = job.step_seconds_keeping(*(lambda graph, one=one, two=two: one(graph) & two(graph) for one, two in pairs))
    return np.array([float(times.sum() / ideal) for times in kept]).reshape(len(job.ranks), len(types))


@dataclass(frozen=True)
class CollectiveBandwidth:
    """Measured time and bus bandwidth of collectives of equal kind, process group and size.

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
            ranks = comm.sender_and_receiver or comm.ranks or tuple(job.ranks[graph.worker[op]] for op in members)
            duration = median([ended[op] for op in members]) - last
            kind = "send" if comm.sender_and_receiver else comm.kind
            found.setdefault((kind, comm.group_text or comm.group, ranks, comm.bytes), []).append(max(duration, 0.0))
    rows = []
    for (kind, group, ranks, size), taken in found.items():
        seconds, modelled = median(taken), _modelled_collective_seconds(kind, ranks, size, cluster)
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


def _modelled_collective_seconds(kind: str, ranks: Sequence[int], size: float, cluster: Cluster | None) -> float | None:
    if cluster is None or kind not in ALGORITHMS or not size > 0 or len(ranks) < 2:
        return None
    if max(ranks) >= cluster.num_gpus:
        raise InputError(
            f"--cluster: {cluster.name!r} has {cluster.num_gpus} GPUs, but a profile is of rank {max(ranks)}; rank n "
            "runs on GPU n: use a cluster with more GPUs"
        )
    # imported late: takes longer than reading a profile
    from simcluster.studies.bench.collective import collective_times

    return collective_times(cluster, ranks, kind, size).duration


_NUMBER = re.compile(r"(\d+)$")


def profile_spans(job: ProfiledJob) -> Spans:
    """Return a timeline span for each replayed kernel, copy and collective (on a CPU: operator), step by step.

    Host launches are omitted. ``kind`` is the phase of computation, ``layer`` the number in the layer's name,
    ``stream`` the axis that the group's description names (default: dp). ``stage`` is 0; chunk and microbatch are
    unknown (-1).
    """

    def label_op(graph: ProfiledStep, op: int) -> TimelineLabel | None:
        source, name, label, optype = graph.sources[op], graph.names[op], graph.labels[op], graph.optype[op]
        layer = int(found[1]) if (found := _NUMBER.search(label.layer)) else -1
        if optype == HOST:
            return None
        if source is not None and (comm := source.comm) is not None:
            size = 0.0 if math.isnan(comm.bytes) else comm.bytes
            return TimelineLabel(find_timeline_axis(comm), comm.kind, name, layer, comm.group_text or comm.group, size)
        if optype == COPY:
            way = next((way for way, word in (("d2h", "DtoH"), ("h2d", "HtoD")) if word in name), "")
            return TimelineLabel(way or "compute", way or "other", name, layer)
        return TimelineLabel("compute", label.phase, name, layer)

    return make_labelled_spans(job, label_op)


def answer_profile_question(job: ProfiledJob, question: str) -> ReplayAnswer:
    """Answer one what-if question about a profiled job; raise InputError for an invalid question."""
    return questions.compare_with_recorded(job, question, apply_profile_what_if(job, question))


def apply_profile_what_if(job: ProfiledJob, what_if: str) -> ProfiledJob:
    """Apply the changes in a what-if question to a profiled job, and return the changed job."""
    return questions.apply_what_if(job, what_if, {**QUESTIONS, "rank": QUESTIONS["worker"]}, "for profiles, choose")


def _set_rank_to_typical_times(job: ProfiledJob, value: str, change: str) -> ProfiledJob:
    if not value.isdecimal() or int(value) not in job.ranks:
        known = ", ".join(map(str, job.ranks[:8])) + (", ..." if len(job.ranks) > 8 else "")
        raise InputError(f"what-if {change!r}: give a rank that has a profile: {known}")
    own = make_op_filter("worker", job.ranks.index(int(value)))
    return questions.set_ops_to_typical_times(job, lambda graph: own(graph) & ~communication_mask(graph))


def _remove_layer_compute(job: ProfiledJob, value: str, change: str) -> ProfiledJob:
    known = list(dict.fromkeys(label.layer for graph in job.profiled_steps for label in graph.labels if label.layer))
    if value not in known:
        raise InputError(f"what-if {change!r}: no op has that layer; the layers are {', '.join(known) or 'unknown'}")

    def select_layer_compute(graph: StepGraph) -> Bools:
        assert isinstance(graph, ProfiledStep)
        return np.array([label.layer == value for label in graph.labels], dtype=bool) & compute_mask(graph)

    return questions.replace_op_seconds(job, select_layer_compute, lambda graph: np.zeros_like(graph.seconds))


QUESTIONS = {
    "links": ReplayQuestion(
        "links=2x: collectives and messages twice as fast, once all ranks have arrived",
        partial(speed_up_ops, chosen=communication_mask),
    ),
    "compute": ReplayQuestion(
        "compute=1.1x: kernels (on a CPU: operators) 1.1 times as fast", partial(speed_up_ops, chosen=compute_mask)
    ),
    "host": ReplayQuestion(
        "host=2x: the host launches twice as fast", partial(speed_up_ops, chosen=make_op_filter("types", HOST))
    ),
    "worker": ReplayQuestion("worker=RANK: ops of that rank take typical times", _set_rank_to_typical_times),
    "type": ReplayQuestion("type=OPTYPE: ops of this type take typical times", questions.set_type_to_typical_times),
    "layer": ReplayQuestion("layer=NAME: the compute of this layer takes no time", _remove_layer_compute),
}
"""Questions by key."""
