"""A recorded job, which can be replayed with other op durations or in another order.

Replicas with the same ops in the same order, and the same waits, run in lockstep when all but one replica take typical
times: one represents them all. Otherwise the cost of asking about every replica would grow with the square of their
number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.gc_pause import pause_gc
from simcluster.interop.replay.step_graph import (
    SWEEP_SIZE,
    Lane,
    OpFilter,
    StepGraph,
    StepProgram,
    is_communication_type,
    make_op_filter,
)

_PROGRAM_COST = 100
"""Time to build an op's program, in sweeps of the op."""
_COLUMNS = ("worker", "microbatch", "chunk", "seconds", "recorded_start", "recorded_end")


class ReplicaClasses:
    """Classes of replicas with identical ops and waits; one replica of each class represents the class."""

    def __init__(self, graph: StepGraph, ops: Sequence[Ints], classes: Sequence[Sequence[int]]) -> None:
        self._graph, self._ops, self._classes = graph, ops, classes

    def step_seconds_by_replica(self, typical: Floats) -> Floats:
        """Return step times [replica, step] (s) if all ops outside the replica take typical times."""
        graph, steps = self._graph, self._graph.seconds.shape[1]
        found = np.empty((len(self._ops), steps))
        for equal in self._classes:  # simulate its first replica with one other of every class
            others = [next((each for each in members if each != equal[0]), None) for members in self._classes]
            chosen = np.sort(np.concatenate([self._ops[each] for each in (equal[0], *others) if each is not None]))
            part, own = StepProgram(_extract_subgraph(graph, chosen)), np.searchsorted(chosen, self._ops[equal[0]])
            at_once = max(1, SWEEP_SIZE // (len(chosen) * steps))
            for begin in range(0, len(equal), at_once):
                replicas = list(equal[begin : begin + at_once])
                some = np.stack([self._ops[replica] for replica in replicas], axis=1)
                seconds = np.broadcast_to(typical[chosen][:, None], (len(chosen), some.shape[1], steps)).copy()
                seconds[own] = graph.seconds[some]
                found[replicas] = part.total_seconds(seconds.reshape(len(chosen), -1)).reshape(-1, steps)
        return found


def find_replica_classes(graph: StepGraph) -> ReplicaClasses | None:
    """Return the classes of a graph's identical replicas, or None if classes would save no work.

    Equal replicas have lanes of the same names and lengths, with ops of the same types, that wait for the same ops of
    their replica and meet either ops of it or, at the same positions, all replicas.
    """
    lanes: list[dict[Lane, tuple[int, ...]]] = [{} for _ in range(int(graph.dp_rank.max()) + 1)]
    if len(lanes) ** 2 <= 2 * _PROGRAM_COST:
        return None
    for worker, name in sorted(graph.lanes, key=lambda lane: (lane[0] % graph.stages, lane[1])):
        lanes[worker // graph.stages][worker % graph.stages, name] = graph.lanes[worker, name]
    ops = [list(chain.from_iterable(own.values())) for own in lanes]
    place = {op: number for own in ops for number, op in enumerate(own)}  # index of every op within its replica
    replica, meets = graph.dp_rank.tolist(), dict[int, int]()
    for number, group in enumerate(graph.groups):
        there = len({replica[op] for op in group})
        if 1 < there < len(lanes):
            return None
        name_of_group = len(graph) + number if there > 1 else min([place[op] for op in group])
        meets.update(dict.fromkeys(group, name_of_group))
    classes: dict[tuple[object, ...], list[int]] = {}
    for number, own in enumerate(ops):
        if any(replica[other] != number for op in own for other in graph.after[op]):
            return None
        shape = tuple((lane, len(names)) for lane, names in lanes[number].items())
        waits = tuple([tuple(sorted([place[other] for other in graph.after[op]])) for op in own])
        key = shape, tuple([graph.optype[op] for op in own]), waits, tuple([meets.get(op, -1) for op in own])
        classes.setdefault(key, []).append(number)
    if _PROGRAM_COST * len(classes) * (len(classes) + 1) >= len(ops) ** 2:
        return None
    return ReplicaClasses(graph, [np.array(own) for own in ops], list(classes.values()))


def _extract_subgraph(graph: StepGraph, ops: Ints) -> StepGraph:
    number = np.full(len(graph), -1)
    number[ops] = np.arange(len(ops))
    of, chosen = number.tolist(), ops.tolist()
    groups = [tuple([of[op] for op in group if of[op] >= 0]) for group in graph.groups]
    columns = {name: getattr(graph, name)[ops] for name in _COLUMNS}
    return StepGraph(
        stages=graph.stages, steps=graph.steps, optype=tuple([graph.optype[op] for op in chosen]),
        lanes={lane: tuple([of[op] for op in own]) for lane, own in graph.lanes.items() if of[own[0]] >= 0},
        after=tuple([tuple([of[other] for other in graph.after[op]]) for op in chosen]),
        groups=tuple([group for group in groups if len(group) > 1]), **columns,
    )  # fmt: skip


@dataclass(frozen=True)
class RecordedJob:
    """Recorded job: a graph of ops for each set of equal steps, and the rank of every worker.

    ``ranks[dp_rank x stages + stage]`` is the rank recorded for a worker; ``notes`` list repairs and assumptions.
    """

    name: str
    graphs: tuple[StepGraph, ...]
    ranks: tuple[int, ...]
    notes: tuple[str, ...] = ()

    @cached_property
    def programs(self) -> tuple[StepProgram, ...]:
        """Step graphs of the job, each with the engine program that replays it."""
        with pause_gc():
            return tuple(StepProgram(graph) for graph in self.graphs)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Numbers of the recorded steps, ascending."""
        return tuple(sorted(step for graph in self.graphs for step in graph.steps))

    @property
    def stages(self) -> int:
        """Number of pipeline stages."""
        return self.graphs[0].stages

    @cached_property
    def replicas(self) -> int:
        """Number of data-parallel ranks."""
        return int(max(graph.worker.max() for graph in self.graphs)) // self.stages + 1

    @property
    def measured_step_seconds(self) -> Floats:
        """Recorded duration (s) of every step."""
        return self._sort_by_step([graph.measured_seconds for graph in self.graphs])

    @cached_property
    def typical_seconds_by_type(self) -> dict[str, float]:
        """Typical duration (s) of each type of op, over all workers and steps.

        The mean for compute (work is split evenly), the median for communication (its slow ops are disturbed).
        """
        pools: dict[str, list[Floats]] = {}
        for part in self.programs:
            for optype in dict.fromkeys(part.graph.reported_types):
                pools.setdefault(optype, []).append(part.graph.seconds[part.types == optype].ravel())
        found = {optype: np.concatenate(pool) for optype, pool in sorted(pools.items())}
        return {
            optype: float(np.median(pool) if is_communication_type(optype) else pool.mean())
            for optype, pool in found.items()
        }

    def typical_op_seconds(self, graph: StepGraph) -> Floats:
        """Return the typical duration (s) of every op of a graph, as a one-column array."""
        return np.array([self.typical_seconds_by_type[optype] for optype in graph.reported_types])[:, None]

    def replay_step_seconds(self, seconds: Callable[[StepGraph], Floats]) -> Floats:
        """Replay the job with durations [op, step] that ``seconds`` returns per graph; return each step's time (s)."""
        found = [
            part.total_seconds(np.broadcast_to(seconds(part.graph), part.graph.seconds.shape)) for part in self.programs
        ]
        return self._sort_by_step(found)

    def step_seconds_keeping(self, *groups: OpFilter) -> list[Floats]:
        """Return step times (s), one array per group of ops: the group as recorded, other ops at typical times.

        Many groups at once take little longer than one.
        """
        found = [self._graph_seconds_keeping(part, groups) for part in self.programs]
        return [self._sort_by_step(own) for own in zip(*found, strict=True)]

    def _graph_seconds_keeping(self, part: StepProgram, groups: Sequence[OpFilter]) -> Floats:
        graph, found = part.graph, []
        typical = self.typical_op_seconds(graph)
        at_once = max(1, SWEEP_SIZE // max(1, graph.seconds.size))
        for first in range(0, len(groups), at_once):
            some = groups[first : first + at_once]
            found.append(part.step_seconds_keeping(np.stack([group(graph) for group in some], axis=1), typical))
        return np.concatenate(found)

    def step_seconds_by_replica(self) -> list[Floats]:
        """Return step times (s), one array per dp rank: that rank as recorded, other ranks at typical times."""
        found = []
        for part in self.programs:
            equal = find_replica_classes(part.graph)
            if equal is None:
                kept = [make_op_filter("dp_rank", replica) for replica in range(self.replicas)]
                found.append(self._graph_seconds_keeping(part, kept))
            else:
                found.append(equal.step_seconds_by_replica(self.typical_op_seconds(part.graph)))
        return [self._sort_by_step(own) for own in zip(*found, strict=True)]

    def simulate_events(self) -> tuple[Floats, int]:
        """Simulate all steps on the event engine; return each step's time (s) and the number of events."""
        times, count = [], 0
        for part in self.programs:
            found = [part.simulate_events(part.graph.seconds, case) for case in range(len(part.graph.steps))]
            times.append(np.array([seconds for seconds, _ in found]))
            count += sum(events for _, events in found)
        return self._sort_by_step(times), count

    def _sort_by_step(self, by_graph: Sequence[Floats]) -> Floats:
        steps = np.array([step for graph in self.graphs for step in graph.steps])
        return np.concatenate(list(by_graph))[np.argsort(steps)]
