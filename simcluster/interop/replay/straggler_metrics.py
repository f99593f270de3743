"""Straggler metrics of a recorded job: slowdown by rank, stage and op type.

The what-if metrics are those of arXiv:2505.05713. T is a job's replayed time over all steps, without delays between
ops; T_ideal the same with every op taking the typical time of its type. S = T / T_ideal. S of a group (an op type, a dp
rank, a stage) keeps the recorded durations of that group only; a worker's is the smaller of those of its dp rank and
its stage. M of a group is the share of T - T_ideal that vanishes when the group alone becomes typical; it may exceed 1,
because the mean contains the group.

A message or collective begins when its last member arrives; the others wait for that one from their own arrival. Only
waits that computation does not hide count, and no instant twice: of concurrent waits, the one that began first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.display import Displayable
from simcluster.interop.replay.longest_path import ReplayedOpTimes
from simcluster.interop.replay.recorded_job import RecordedJob
from simcluster.interop.replay.recorded_trace import BACKWARD, COLLECTIVE_SCOPES, FORWARD, LAUNCH_PREFIX, MESSAGE_TYPES
from simcluster.interop.replay.step_graph import (
    OpFilter,
    StepGraph,
    StepProgram,
    compute_mask,
    is_communication_type,
    make_op_filter,
)
from simcluster.results.span_states import intervals_inside
from simcluster.results.timeline import COLUMNS, Spans
from simcluster.results.waits import MAX_READABLE, WaitMatrix

WORST_SHARE = 0.03
"""Share of workers that count as the slowest (M_W of arXiv:2505.05713)."""

Worker = tuple[int, int]
"""(dp rank, stage)."""


@dataclass(frozen=True)
class StragglerCost:
    """Cost of the stragglers among one group of ops, in mean seconds per step.

    ``without`` has the group typical and all else as recorded, ``alone`` the group as recorded and all else typical.
    ``removed`` is M, the share of the excess over T_ideal that vanishes in the former, ``added`` the share that occurs
    in the latter; None if the job has no excess.
    """

    without: float
    alone: float
    removed: float | None
    added: float | None

    def to_dict(self) -> dict[str, float | None]:
        """Return the stragglers' cost as a dict for JSON."""
        return dict(zip(("without_s", "alone_s", "excess_removed", "excess_added"), astuple(self), strict=True))


@dataclass(frozen=True)
class StragglerMetrics(Displayable):
    """Straggler metrics of a recorded job.

    ``measured``, ``replayed`` and ``ideal`` are seconds of every step; ``error`` is the mean of |replayed - measured| /
    measured; ``launch`` is total measured over total replayed time: the delays between ops, which a replay omits.
    """

    steps: tuple[int, ...]
    measured: Floats
    replayed: Floats
    ideal: Floats
    slowdown: float
    launch: float
    error: float
    by_type: dict[str, float]
    by_replica: Floats
    by_stage: Floats
    worst: tuple[Worker, ...]
    worst_workers: StragglerCost
    last_stage: StragglerCost
    typical: dict[str, float]

    @property
    def by_worker(self) -> Floats:
        """Slowdown S caused by each worker, as an array [dp rank, stage]."""
        return np.asarray(np.minimum.outer(self.by_replica, self.by_stage))

    @property
    def by_step(self) -> Floats:
        """Slowdown S of every step: replayed time over ideal time."""
        return self.replayed / self.ideal

    def to_dict(self) -> dict[str, Any]:
        """Return all straggler metrics as a dict for JSON."""
        steps = zip(self.steps, self.measured, self.replayed, self.ideal, strict=True)
        return {
            "steps": [
                {"step": step, "measured_s": float(a), "replayed_s": float(b), "ideal_s": float(c),
                 "slowdown": float(b / c)}
                for step, a, b, c in steps
            ],
            "measured_s": float(self.measured.mean()),
            "replayed_s": float(self.replayed.mean()),
            "ideal_s": float(self.ideal.mean()),
            "replay_error": self.error,
            "launch_slowdown": self.launch,
            "slowdown": self.slowdown,
            "slowdown_by_type": self.by_type,
            "slowdown_by_dp_rank": self.by_replica.tolist(),
            "slowdown_by_stage": self.by_stage.tolist(),
            "slowdown_by_worker": self.by_worker.tolist(),
            "worst_workers": {"workers": [list(worker) for worker in self.worst], **self.worst_workers.to_dict()},
            "last_stage": self.last_stage.to_dict(),
            "typical_s": self.typical,
        }  # fmt: skip


def measure_stragglers(job: RecordedJob) -> StragglerMetrics:
    """Return the straggler metrics of a recorded job."""
    replayed = job.replay_step_seconds(lambda graph: graph.seconds)
    ideal = job.replay_step_seconds(job.typical_op_seconds)
    types = [optype for optype in job.typical_seconds_by_type if not optype.startswith(LAUNCH_PREFIX)]
    of_types = [make_op_filter("types", optype) for optype in types]
    of_stages = [make_op_filter("stage", stage) for stage in range(job.stages)]
    ratios = [_total_time_ratio(times, ideal) for times in job.step_seconds_keeping(*of_types, *of_stages)]
    by_type, by_stage = dict(zip(types, ratios, strict=False)), ratios[len(types) :]
    by_replica = [_total_time_ratio(times, ideal) for times in job.step_seconds_by_replica()]
    worst = find_slowest_workers(np.minimum.outer(by_replica, by_stage))

    def group_cost(group: OpFilter) -> StragglerCost:
        found = job.step_seconds_keeping(lambda graph: ~group(graph), group)
        without, alone, actual, best = (float(times.mean()) for times in (*found, replayed, ideal))
        if actual - best < 1e-9 * best:
            return StragglerCost(without, alone, None, None)
        return StragglerCost(without, alone, (actual - without) / (actual - best), (alone - best) / (actual - best))

    return StragglerMetrics(
        steps=job.steps, measured=job.measured_step_seconds, replayed=replayed, ideal=ideal,
        slowdown=_total_time_ratio(replayed, ideal), launch=_total_time_ratio(job.measured_step_seconds, replayed),
        error=float(np.mean(np.abs(replayed - job.measured_step_seconds) / job.measured_step_seconds)),
        by_type=dict(sorted(by_type.items(), key=lambda entry: -entry[1])), by_replica=np.array(by_replica),
        by_stage=np.array(by_stage), worst=worst,
        worst_workers=group_cost(make_op_filter("worker", *(dp * job.stages + stage for dp, stage in worst))),
        last_stage=group_cost(make_op_filter("stage", job.stages - 1)),
        typical={optype: job.typical_seconds_by_type[optype] for optype in types},
    )  # fmt: skip


def explain_slowdown(found: StragglerMetrics) -> list[str]:
    """Return lines that state which share of the slowdown the slowest workers and the last stage explain."""
    shares = {"the slowest 3 % of workers": found.worst_workers.removed, "the last stage": found.last_stage.removed}
    known = {who: share for who, share in shares.items() if share is not None}
    wide = max((len(who) for who in known), default=0)
    lines = [f"  slowdown explained by {who:<{wide}} {share:>7.1%}" for who, share in known.items()]
    if any(share > 1 for share in known.values()):
        lines.append("  over 100 %: without them steps would be shorter than typical ones")
    return lines


def find_slowest_workers(by_worker: Floats) -> tuple[Worker, ...]:
    """Return the 3 % of workers (at least one) with the highest slowdown, worst first."""
    count = math.ceil(WORST_SHARE * by_worker.size)
    order = np.argsort(-by_worker, axis=None, kind="stable")[:count]
    return tuple((int(number) // by_worker.shape[1], int(number) % by_worker.shape[1]) for number in order)


def _total_time_ratio(times: Floats, reference: Floats) -> float:
    return float(times.sum() / reference.sum())


def rank_wait_seconds(job: RecordedJob) -> Floats:
    """Return how long each rank waits for each other rank per step: [waiting rank, awaited rank], mean (s)."""
    count = len(job.ranks)
    seconds = np.zeros((count, count))
    for part in job.programs:
        path_times = part.replay(part.graph.seconds)
        for step in range(len(part.graph.steps)):
            seconds += _step_wait_matrix(part, path_times, step, count)
    return seconds / len(job.steps)


def labelled_wait_matrix(job: RecordedJob) -> WaitMatrix:
    """Return a labelled matrix of mean waits between ranks (between stages if there are many ranks)."""
    seconds = rank_wait_seconds(job)
    if len(job.ranks) <= MAX_READABLE or job.stages == 1:
        order = np.argsort(job.ranks, kind="stable")
        return WaitMatrix("rank", tuple(str(job.ranks[worker]) for worker in order), seconds[np.ix_(order, order)])
    by_stage = seconds.reshape(job.replicas, job.stages, job.replicas, job.stages).sum(axis=(0, 2)) / job.replicas
    return WaitMatrix("stage", tuple(map(str, range(job.stages))), by_stage)


def longest_waits(matrix: Floats, count: int) -> list[tuple[int, int, float]]:
    """Return the longest waits, each as (waiting rank, awaited rank, seconds)."""
    order = np.argsort(-matrix, axis=None, kind="stable")[:count].tolist()
    pairs = [divmod(int(number), matrix.shape[1]) for number in order]
    return [(one, other, float(matrix[one, other])) for one, other in pairs if matrix[one, other] > 0]


def _step_wait_matrix(part: StepProgram, path_times: ReplayedOpTimes, step: int, count: int) -> Floats:
    graph = part.graph
    arrival = path_times.ready[part.first_ops, step]
    begin, end = path_times.start[part.last_ops, step], path_times.end[part.last_ops, step]
    # ops that wait for another of their group, and the last one (of equals the first)
    early, late = list[int](), list[int]()
    for group in graph.groups:
        members = np.array(group)
        last = members[int(np.argmax(arrival[members]))]
        waiting = members[arrival[members] < arrival[last]].tolist()
        early += waiting
        late += [int(last)] * len(waiting)
    busy = np.flatnonzero(compute_mask(graph))
    waits, culprits = (np.array(ops, dtype=np.int64) for ops in (early, late))
    found = np.zeros((count, count))
    own_waits, own_busy = _split_by_worker(graph.worker[waits], count), _split_by_worker(graph.worker[busy], count)
    for worker, (mine, computed) in enumerate(zip(own_waits, own_busy, strict=True)):
        if len(mine):
            own = busy[computed]
            exposed = _exposed_wait_seconds(arrival[waits[mine]], arrival[culprits[mine]], begin[own], end[own])
            np.add.at(found[worker], graph.worker[culprits[mine]], exposed)
    return found


def _split_by_worker(worker: Ints, count: int) -> list[Ints]:
    order = np.argsort(worker, kind="stable")
    return np.split(order, np.searchsorted(worker[order], np.arange(1, count)))


def _exposed_wait_seconds(low: Floats, high: Floats, begin: Floats, end: Floats) -> Floats:
    """Return how many seconds of each wait (``low`` to ``high``) no compute overlaps; count no instant twice."""
    order = np.lexsort((high, low))
    before = np.concatenate([[-np.inf], np.maximum.accumulate(high[order])[:-1]])
    first = np.maximum(low[order], before)
    last = np.maximum(high[order], first)
    edges = np.unique(np.concatenate([first, last, begin, end]))
    idle = np.concatenate([[0.0], np.cumsum(np.diff(edges) * ~intervals_inside(edges, begin, end))])  # by each edge
    found = np.empty(len(low))
    found[order] = idle[np.searchsorted(edges, last)] - idle[np.searchsorted(edges, first)]
    return found


_SCOPE_STREAMS = {"replicas": "dp", "pipeline": "pp", "job": "pp", "worker": "tp"}
_TYPE_KINDS = {
    FORWARD: "forward", BACKWARD: "backward", "optimizer": "optimizer", "params-all-gather": "all_gather",
    "grads-reduce-scatter": "reduce_scatter",
}  # fmt: skip


class TimelineLabel(NamedTuple):
    """Label of an op in the timeline: stream, kind, name, layer, process group and bytes."""

    stream: str
    kind: str
    name: str
    layer: int = -1
    group: str = ""
    bytes: float = 0.0


def replayed_spans(job: RecordedJob) -> Spans:
    """Return a timeline span for each recorded op, with its replayed times, step by step.

    ``ready`` is the worker's arrival, ``start`` that of the last member of the op's group. ``name`` is the type in the
    trace, ``chunk`` the chunk of the stage.
    """

    def label_op(graph: StepGraph, op: int) -> TimelineLabel | None:
        optype = graph.optype[op]
        if optype.startswith(LAUNCH_PREFIX):
            return None
        if optype in MESSAGE_TYPES:
            return TimelineLabel("pp", optype.rpartition("-")[2], optype)
        kind = _TYPE_KINDS.get(optype, "all_reduce" if is_communication_type(optype) else "other")
        return TimelineLabel(_SCOPE_STREAMS.get(COLLECTIVE_SCOPES.get(optype, ""), "compute"), kind, optype)

    return make_labelled_spans(job, label_op)


def make_labelled_spans(job: RecordedJob, names: Callable[[Any, int], TimelineLabel | None]) -> Spans:
    """Return a job's replayed spans, step by step; ops for which ``names`` returns None are omitted."""
    times = job.replay_step_seconds(lambda graph: graph.seconds)
    begins = dict(zip(job.steps, np.cumsum(times) - times, strict=True))
    words = {"": 0}
    parts: list[dict[str, Any]] = []
    for part in job.programs:
        graph, path_times = part.graph, part.replay(part.graph.seconds)
        shown = {op: found for op in range(len(graph)) if (found := names(graph, op)) is not None}
        ops = np.array(list(shown), dtype=np.int64)
        named: dict[str, Any] = dict(zip(TimelineLabel._fields, zip(*shown.values(), strict=True), strict=True))
        for column in ("stream", "kind", "name", "group"):
            named[column] = [words.setdefault(text, len(words)) for text in named[column]]
        columns = named | {
            "op": part.last_ops[ops], "rank": np.array(job.ranks)[graph.worker[ops]], "stage": graph.stage[ops],
            "chunk": np.where(graph.chunk < 0, -1, graph.chunk // graph.stages)[ops],
            "microbatch": graph.microbatch[ops],
        }  # fmt: skip
        columns = {name: np.tile(column, len(graph.steps)) for name, column in columns.items()}
        columns["step"] = np.repeat(np.array(graph.steps), len(ops))
        offset = np.array([begins[step] for step in graph.steps])
        for name, own in (("ready", part.first_ops), ("start", part.last_ops), ("end", part.last_ops)):
            columns[name] = (getattr(path_times, name)[own[ops]] + offset).T.ravel()
        parts.append(columns)
    whole = {name: np.concatenate([part[name] for part in parts]) for name in ("op", *COLUMNS)}
    order = np.lexsort((whole["end"], whole["start"], whole["rank"]))
    return Spans(tuple(words), *(column[order] for column in whole.values()))
