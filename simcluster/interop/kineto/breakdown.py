"""Where the time of profiled ranks went, as recorded: by state, by layer, and what collectives reached.

At any instant a rank is in one state: computing (a kernel, or an operator of a CPU); else in a collective, waiting
while a member has not arrived and exposed once all have; else copying; else idle.  Overlap is |C and N| / |N| as
HolisticTraceAnalysis counts it (C computing, N in collectives, waiting included).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from simcluster.base.arrays import Bools, Floats
from simcluster.interop.kineto.job import ProfiledJob
from simcluster.interop.kineto.labels import Label
from simcluster.interop.kineto.rebuild import COPY, HOST, Profiled
from simcluster.interop.recorded.graph import Chosen, StepGraph, is_communication, of_type, of_workers
from simcluster.results.metrics import inside


@dataclass(frozen=True)
class ProfiledRankTime:
    """Mean seconds of a rank in a step.  The states sum to the step of all ranks (first start to last end);
    ``step`` is the rank's own, ``overlap`` the part of its time in collectives during which it computed."""

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
    """Mean seconds of compute of a part of the model in a step, by rank [rank].

    ``peers`` are the places of the ranks that have the part, those together that have all the same parts: under a
    pipeline the ranks of a stage, which alone do the same work even where stages share a name (what is in no layer, the
    optimizer).
    """

    label: Label
    seconds: Floats
    peers: tuple[tuple[int, ...], ...]

    @property
    def owners(self) -> list[int]:
        """The places of all ranks that have it."""
        return sorted(owner for group in self.peers for owner in group)

    @property
    def mean(self) -> float:
        """Seconds of a rank that has it."""
        return float(self.seconds[self.owners].mean())

    @property
    def slowest(self) -> tuple[int, float] | None:
        """The place of the rank that is furthest above the mean of its other peers, and by how much of that (0.2:
        20 %); None where nobody has peers."""
        found: list[tuple[float, int]] = []
        for group in self.peers:
            place = max(group, key=lambda owner: float(self.seconds[owner]))
            others = [owner for owner in group if owner != place]
            mean = float(self.seconds[others].mean()) if others else 0.0
            found += [(float(self.seconds[place]) / mean - 1, -place)] if mean else []
        more, place = max(found, default=(0.0, 0))
        return (-place, more) if found else None


def breakdown(job: ProfiledJob) -> list[ProfiledRankTime]:
    """Every rank's time, mean over the steps."""
    tables = [
        [_of_rank(graph, worker, float(length)) for worker in range(len(job.ranks))]
        for graph, length in zip(job.steps_of_ranks, job.measured[_order(job)], strict=True)
    ]
    mean = np.mean(np.array(tables), axis=0)
    found = []
    for rank, row in zip(job.ranks, mean, strict=True):
        step, computing, exposed, waiting, copying, idle, both, there = map(float, row)
        overlap = both / there if there else 0.0
        found.append(ProfiledRankTime(rank, step, computing, exposed, waiting, copying, idle, overlap))
    return found


def _order(job: ProfiledJob) -> list[int]:
    """Places of the graphs' steps in the job's order of steps."""
    return [job.steps.index(graph.steps[0]) for graph in job.steps_of_ranks]


def _of_rank(graph: Profiled, worker: int, length: float) -> list[float]:
    """Own step, the states, and the overlapped and whole time in collectives."""
    ops = np.flatnonzero(graph.worker == worker)
    start, end = graph.began[ops, 0], graph.ended[ops, 0]
    kinds = [graph.optype[op] for op in ops]
    comm = np.array([is_communication(kind) for kind in kinds], dtype=bool)
    host = np.array([kind == HOST for kind in kinds], dtype=bool)
    copy = np.array([kind == COPY for kind in kinds], dtype=bool)
    arrived = _arrived(graph)[ops]
    edges = np.unique(np.concatenate([start, end, np.minimum(arrived[comm], end[comm])]))
    width = np.diff(edges)
    computing = inside(edges, start[~(comm | host | copy)], end[~(comm | host | copy)])
    there = inside(edges, start[comm], end[comm])
    late = inside(edges, start[comm], np.minimum(arrived[comm], end[comm]))
    going = inside(edges, np.minimum(arrived[comm], end[comm]), end[comm])
    copying = inside(edges, start[copy], end[copy])
    states = [
        computing, ~computing & going, ~computing & ~going & late, ~computing & ~there & copying,
    ]  # fmt: skip
    seconds = [float(width[state].sum()) for state in states]
    busy = ops[~host] if graph.on_device else ops
    own = float(graph.ended[busy].max() - graph.began[busy].min()) if len(busy) else 0.0
    idle = max(0.0, length - sum(seconds))
    idle = idle if idle > 1e-9 * length else 0.0  # what rounding leaves of nothing
    return [own, *seconds, idle, float(width[computing & there].sum()), float(width[there].sum())]


def _arrived(graph: Profiled) -> Floats:
    """When the last member of each op's collective arrived; of others, their own start."""
    arrived = graph.began[:, 0].copy()
    for group in graph.groups:
        arrived[list(group)] = arrived[list(group)].max()
    return np.asarray(arrived)


def layers(job: ProfiledJob) -> list[LayerTime]:
    """Compute of every part of the model, in the order in which it is met."""
    found: dict[Label, Floats] = {}
    parts: dict[int, dict[Label, None]] = {}  # of every rank
    for graph in job.steps_of_ranks:
        for op, label in enumerate(graph.labels):
            if graph.optype[op] not in (HOST, COPY) and not is_communication(graph.optype[op]):
                taken = graph.ended[op, 0] - graph.began[op, 0]
                found.setdefault(label, np.zeros(len(job.ranks)))[graph.worker[op]] += taken
                parts.setdefault(int(graph.worker[op]), {})[label] = None
    alike: dict[frozenset[Label], list[int]] = {}
    for place, own in sorted(parts.items()):
        alike.setdefault(frozenset(own), []).append(place)
    steps = len(job.graphs)
    return [
        LayerTime(label, seconds / steps, tuple(tuple(group) for own, group in alike.items() if label in own))
        for label, seconds in found.items()
    ]


def slowdown_by_type(job: ProfiledJob, types: Sequence[str]) -> Floats:
    """S of what every rank's ops of these types do alone, [rank, type]: only they take what they took."""
    pairs = itertools.product(map(of_workers, range(len(job.ranks))), map(of_type, types))
    groups = [partial(_both, one=one, other=other) for one, other in pairs]
    ideal = job.times(job.typical_of).sum()
    ratios = [float(times.sum() / ideal) for times in job.keeping(*groups)]
    return np.array(ratios).reshape(len(job.ranks), len(types))


def _both(graph: StepGraph, one: Chosen, other: Chosen) -> Bools:
    return one(graph) & other(graph)
