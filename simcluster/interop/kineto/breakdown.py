"""Where the time of profiled ranks went, as recorded: by state, by layer, and what collectives reached.

At any instant a rank is in one state: computing (a kernel, or an operator of a CPU); else in a collective, waiting
while a member has not arrived and exposed once all have; else copying; else idle.  Overlap is |C and N| / |N| as
HolisticTraceAnalysis counts it (C computing, N in collectives, waiting included).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.interop.kineto.job import ProfiledJob
from simcluster.interop.kineto.labels import TraceLabel
from simcluster.interop.kineto.rebuild import Profiled
from simcluster.interop.recorded.graph import COPY, HOST, computing, having, is_comm
from simcluster.results.span_states import inside


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

    label: TraceLabel
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
    mean = np.mean([_of_ranks(graph, len(job.ranks)) for graph in job.steps_of_ranks], axis=0)
    found = []
    for rank, row in zip(job.ranks, mean.tolist(), strict=True):
        step, busy, exposed, waiting, copying, idle, both, there = row
        overlap = both / there if there else 0.0
        found.append(ProfiledRankTime(rank, step, busy, exposed, waiting, copying, idle, overlap))
    return found


def _of_ranks(graph: Profiled, ranks: int) -> list[list[float]]:
    """Of every rank its own step, the states, and the overlapped and whole time in collectives."""
    arrived, began, ended = _arrived(graph), graph.began[:, 0], graph.ended[:, 0]
    length, found = float(graph.measured[0]), []
    columns = [is_comm(graph), computing(graph), having("types", COPY)(graph), ~having("types", HOST)(graph)]
    for worker in range(ranks):
        own = np.flatnonzero(graph.worker == worker)
        comm, computes, copies, device = (own[column[own]] for column in columns)
        edges = np.unique(np.concatenate([began[own], ended[own], arrived[comm]]))
        width = np.diff(edges)

        def on(chosen: Ints, start: Floats, end: Floats, edges: Floats = edges) -> Bools:
            return inside(edges, start[chosen], end[chosen])

        busy, there = on(computes, began, ended), on(comm, began, ended)
        late, going = on(comm, began, arrived), on(comm, arrived, ended)
        states = [busy, ~busy & going, ~busy & ~going & late, ~busy & ~there & on(copies, began, ended)]
        seconds = [float(width[state].sum()) for state in states]
        counted = device if graph.on_device else own
        whole = float(ended[counted].max() - began[counted].min()) if len(counted) else 0.0
        idle = max(0.0, length - sum(seconds))
        idle = idle if idle > 1e-9 * length else 0.0  # what rounding leaves of nothing
        found.append([whole, *seconds, idle, float(width[busy & there].sum()), float(width[there].sum())])
    return found


def _arrived(graph: Profiled) -> Floats:
    """When the last member of each op's collective arrived, or when the op ended if that was before it."""
    arrived = graph.began[:, 0].copy()
    for group in graph.groups:
        arrived[list(group)] = arrived[list(group)].max()
    return np.minimum(arrived, graph.ended[:, 0])


def layers(job: ProfiledJob) -> list[LayerTime]:
    """Compute of every part of the model, in the order in which it is met."""
    found: dict[TraceLabel, Floats] = {}
    parts: dict[int, dict[TraceLabel, None]] = {}  # of every rank
    for graph in job.steps_of_ranks:
        for op in np.flatnonzero(computing(graph)).tolist():
            label, worker = graph.labels[op], int(graph.worker[op])
            found.setdefault(label, np.zeros(len(job.ranks)))[worker] += graph.ended[op, 0] - graph.began[op, 0]
            parts.setdefault(worker, {})[label] = None
    alike: dict[frozenset[TraceLabel], list[int]] = {}
    for place, own in sorted(parts.items()):
        alike.setdefault(frozenset(own), []).append(place)
    steps = len(job.graphs)
    return [
        LayerTime(label, seconds / steps, tuple(tuple(group) for own, group in alike.items() if label in own))
        for label, seconds in found.items()
    ]


def slowdown_by_type(job: ProfiledJob, types: Sequence[str]) -> Floats:
    """S of what every rank's ops of these types do alone, [rank, type]: only they take what they took."""
    workers = (having("worker", place) for place in range(len(job.ranks)))
    pairs = itertools.product(workers, [having("types", optype) for optype in types])
    ideal = job.times(job.typical_of).sum()
    kept = job.keeping(*(lambda graph, one=one, other=other: one(graph) & other(graph) for one, other in pairs))
    return np.array([float(times.sum() / ideal) for times in kept]).reshape(len(job.ranks), len(types))
