"""A recorded job that can be replayed with other durations or in another order.

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
from simcluster.base.gc_paused import pause_gc
from simcluster.interop.replay.step_graph import (
    SWEEP_SIZE,
    Lane,
    OpFilter,
    StepGraph,
    StepProgram,
    filter_ops,
    is_communication_type,
)

_PROGRAM_COST = 100
"""Time to build an op's program, in sweeps of the op."""
_COLUMNS = ("worker", "microbatch", "chunk", "seconds", "recorded_start", "recorded_end")


class ReplicaClasses:
    """Groups of replicas that behave equally, so that one of each group represents the others."""

    def __init__(self, graph: StepGraph, ops: Sequence[Ints], classes: Sequence[Sequence[int]]) -> None:
        self._graph, self._ops, self._classes = graph, ops, classes

    def step_seconds_by_replica(self, typical: Floats) -> Floats:
        """Return step seconds [replica, step] if only that replica keeps its recorded durations."""
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
    """Return the groups of a graph's equal replicas, or None if they would save no work.

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
class Recorded:
    """The steps of a recorded job, with the rank of every worker.

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
    def measured(self) -> Floats:
        """Recorded seconds of every step."""
        return self._sort_by_step([graph.measured_seconds for graph in self.graphs])

    @cached_property
    def typical(self) -> dict[str, float]:
        """Typical duration (s) of an op by type, over all workers and steps.

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

    def typical_seconds(self, graph: StepGraph) -> Floats:
        """Return the typical duration (s) of every op of a graph, as a column."""
        return np.array([self.typical[optype] for optype in graph.reported_types])[:, None]

    def step_seconds(self, seconds: Callable[[StepGraph], Floats]) -> Floats:
        """Return the seconds of every step if ops take ``seconds(graph)`` [op, step]."""
        return self._sort_by_step(
            [
                part.total_seconds(np.broadcast_to(seconds(part.graph), part.graph.seconds.shape))
                for part in self.programs
            ]
        )

    def seconds_keeping(self, *groups: OpFilter) -> list[Floats]:
        """Return step seconds for each group of ops if only that group keeps its recorded durations.

        Many groups at once take little longer than one.
        """
        found = [self._seconds_keeping(part, groups) for part in self.programs]
        return [self._sort_by_step(own) for own in zip(*found, strict=True)]

    def _seconds_keeping(self, part: StepProgram, groups: Sequence[OpFilter]) -> Floats:
        graph, found = part.graph, []
        typical = self.typical_seconds(graph)
        at_once = max(1, SWEEP_SIZE // max(1, graph.seconds.size))
        for first in range(0, len(groups), at_once):
            some = groups[first : first + at_once]
            found.append(part.seconds_keeping(np.stack([group(graph) for group in some], axis=1), typical))
        return np.concatenate(found)

    def seconds_keeping_each_replica(self) -> list[Floats]:
        """Return step seconds for each dp rank if only that rank keeps its recorded durations."""
        found = []
        for part in self.programs:
            equal = find_replica_classes(part.graph)
            if equal is None:
                found.append(
                    self._seconds_keeping(part, [filter_ops("dp_rank", replica) for replica in range(self.replicas)])
                )
            else:
                found.append(equal.step_seconds_by_replica(self.typical_seconds(part.graph)))
        return [self._sort_by_step(own) for own in zip(*found, strict=True)]

    def simulate_events(self) -> tuple[Floats, int]:
        """Simulate all steps on the event engine; return their seconds and the number of events."""
        times, count = [], 0
        for part in self.programs:
            found = [part.simulate_events(part.graph.seconds, case) for case in range(len(part.graph.steps))]
            times.append(np.array([seconds for seconds, _ in found]))
            count += sum(events for _, events in found)
        return self._sort_by_step(times), count

    def _sort_by_step(self, of_parts: Sequence[Floats]) -> Floats:
        steps = np.array([step for graph in self.graphs for step in graph.steps])
        return np.concatenate(list(of_parts))[np.argsort(steps)]
