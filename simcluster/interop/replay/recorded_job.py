"""A recorded job that can be replayed under other durations, or in another order.

Replicas that run the same ops in the same order, and wait for others alike, do everything at the same instants where
all but one replica take what is typical: one represents them all.  Without that, the question of every replica would
grow with the square of their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.gc_paused import collector_off
from simcluster.interop.replay.step_graph import (
    DURATIONS_PER_SWEEP,
    OpFilter,
    Lane,
    StepProgram,
    StepGraph,
    select_by,
    is_communication,
)

_PROGRAM_COST = 100
"""How often an op can be swept in the time in which a program is made of it."""
_COLUMNS = ("worker", "microbatch", "chunk", "seconds", "began", "ended")


class ReplicaClasses:
    """The classes of a graph's replicas: ``ops[replica]`` correspond to those of all that are alike, in their order."""

    def __init__(self, graph: StepGraph, ops: Sequence[Ints], classes: Sequence[Sequence[int]]) -> None:
        self._graph, self._ops, self._classes = graph, ops, classes

    def seconds_of_each(self, typical: Floats) -> Floats:
        """Return seconds [replica, step] if only that replica takes what it took, all others ``typical`` [op, 1]."""
        graph, steps = self._graph, self._graph.seconds.shape[1]
        found = np.empty((len(self._ops), steps))
        for alike in self._classes:  # its first replica with one other of every class
            others = [next((each for each in members if each != alike[0]), None) for members in self._classes]
            chosen = np.sort(np.concatenate([self._ops[each] for each in (alike[0], *others) if each is not None]))
            part, own = StepProgram(_subgraph(graph, chosen)), np.searchsorted(chosen, self._ops[alike[0]])
            at_once = max(1, DURATIONS_PER_SWEEP // (len(chosen) * steps))
            for begin in range(0, len(alike), at_once):
                replicas = list(alike[begin : begin + at_once])
                some = np.stack([self._ops[replica] for replica in replicas], axis=1)
                seconds = np.broadcast_to(typical[chosen][:, None], (len(chosen), some.shape[1], steps)).copy()
                seconds[own] = graph.seconds[some]
                found[replicas] = part.total_seconds(seconds.reshape(len(chosen), -1)).reshape(-1, steps)
        return found


def find_replica_classes(graph: StepGraph) -> ReplicaClasses | None:
    """Return the classes of a graph's replicas; None where sweeping all replicas is no more work.

    The rule by which they are alike: lanes of the same names and lengths, with ops of the same types, that wait for the
    same ops of their own replica and meet either ops of it or, at the same places, all replicas.
    """
    lanes: list[dict[Lane, tuple[int, ...]]] = [{} for _ in range(int(graph.dp_rank.max()) + 1)]
    if len(lanes) ** 2 <= 2 * _PROGRAM_COST:
        return None
    for worker, name in sorted(graph.lanes, key=lambda lane: (lane[0] % graph.stages, lane[1])):
        lanes[worker // graph.stages][worker % graph.stages, name] = graph.lanes[worker, name]
    ops = [list(chain.from_iterable(own.values())) for own in lanes]
    place = {op: number for own in ops for number, op in enumerate(own)}  # of every op among those of its replica
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


def _subgraph(graph: StepGraph, ops: Ints) -> StepGraph:
    number = np.full(len(graph), -1)
    number[ops] = np.arange(len(ops))
    of, chosen = number.tolist(), ops.tolist()
    groups = [tuple([of[op] for op in group if of[op] >= 0]) for group in graph.groups]
    columns = {name: getattr(graph, name)[ops] for name in _COLUMNS}
    return StepGraph(
        stages=graph.stages,
        steps=graph.steps,
        optype=tuple([graph.optype[op] for op in chosen]),
        lanes={lane: tuple([of[op] for op in own]) for lane, own in graph.lanes.items() if of[own[0]] >= 0},
        after=tuple([tuple([of[other] for other in graph.after[op]]) for op in chosen]),
        groups=tuple([group for group in groups if len(group) > 1]),
        **columns,
    )


@dataclass(frozen=True)
class Recorded:
    """The steps of a job, in the order of ``steps``.

    ``ranks[dp_rank x stages + stage]`` is the rank that was recorded for a worker; ``notes`` say what was repaired or
    assumed.
    """

    name: str
    graphs: tuple[StepGraph, ...]
    ranks: tuple[int, ...]
    notes: tuple[str, ...] = ()

    @cached_property
    def programs(self) -> tuple[StepProgram, ...]:
        """The graphs with their programs."""
        with collector_off():
            return tuple(StepProgram(graph) for graph in self.graphs)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Numbers of the steps, ascending."""
        return tuple(sorted(step for graph in self.graphs for step in graph.steps))

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return self.graphs[0].stages

    @cached_property
    def replicas(self) -> int:
        """Data-parallel ranks."""
        return int(max(graph.worker.max() for graph in self.graphs)) // self.stages + 1

    @property
    def measured(self) -> Floats:
        """Seconds of every step as it was recorded."""
        return self._sort_by_step([graph.measured_seconds for graph in self.graphs])

    @cached_property
    def typical(self) -> dict[str, float]:
        """Seconds of an op of every type where nothing straggles, over all workers and steps.

        The mean of compute (work is shared out evenly), the median of communication (its slow ones are disturbed).
        """
        pools: dict[str, list[Floats]] = {}
        for part in self.programs:
            for optype in dict.fromkeys(part.graph.reported_types):
                pools.setdefault(optype, []).append(part.graph.seconds[part.types == optype].ravel())
        found = {optype: np.concatenate(pool) for optype, pool in sorted(pools.items())}
        return {
            optype: float(np.median(pool) if is_communication(optype) else pool.mean())
            for optype, pool in found.items()
        }

    def typical_seconds(self, graph: StepGraph) -> Floats:
        """Return the typical seconds of every op of a graph, as a column."""
        return np.array([self.typical[optype] for optype in graph.reported_types])[:, None]

    def step_seconds(self, seconds: Callable[[StepGraph], Floats]) -> Floats:
        """Return seconds of every step if ops took ``seconds(graph)`` [op, step]."""
        return self._sort_by_step(
            [part.total_seconds(np.broadcast_to(seconds(part.graph), part.graph.seconds.shape)) for part in self.programs]
        )

    def seconds_keeping(self, *groups: OpFilter) -> list[Floats]:
        """Return per group of ops the seconds of every step if only they take what they took, others what is typical.

        Many groups together take little longer than one.
        """
        found = [self._program_seconds_keeping(part, groups) for part in self.programs]
        return [self._sort_by_step(own) for own in zip(*found, strict=True)]

    def _program_seconds_keeping(self, part: StepProgram, groups: Sequence[OpFilter]) -> Floats:
        """Return the same of the steps of a part, [group, step]."""
        graph, found = part.graph, []
        typical = self.typical_seconds(graph)
        at_once = max(1, DURATIONS_PER_SWEEP // max(1, graph.seconds.size))
        for first in range(0, len(groups), at_once):
            some = groups[first : first + at_once]
            found.append(part.seconds_keeping(np.stack([group(graph) for group in some], axis=1), typical))
        return np.concatenate(found)

    def seconds_keeping_each_replica(self) -> list[Floats]:
        """Return per dp rank the seconds of every step if only that one takes what it took."""
        found = []
        for part in self.programs:
            alike = find_replica_classes(part.graph)
            if alike is None:
                found.append(self._program_seconds_keeping(part, [select_by("dp_rank", replica) for replica in range(self.replicas)]))
            else:
                found.append(alike.seconds_of_each(self.typical_seconds(part.graph)))
        return [self._sort_by_step(own) for own in zip(*found, strict=True)]

    def simulate_events(self) -> tuple[Floats, int]:
        """Return seconds of every step as recorded, on the event engine, and how many events that took."""
        times, count = [], 0
        for part in self.programs:
            found = [part.simulate_events(part.graph.seconds, case) for case in range(len(part.graph.steps))]
            times.append(np.array([seconds for seconds, _ in found]))
            count += sum(events for _, events in found)
        return self._sort_by_step(times), count

    def _sort_by_step(self, of_parts: Sequence[Floats]) -> Floats:
        steps = np.array([step for graph in self.graphs for step in graph.steps])
        return np.concatenate(list(of_parts))[np.argsort(steps)]
