"""A recorded job that can be played under other durations, or in another order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.gc_paused import collector_off
from simcluster.interop.recorded.alike_replicas import alike_replicas
from simcluster.interop.recorded.graph import Chosen, StepGraph, having, is_communication
from simcluster.interop.recorded.lowering import TOGETHER, RecordedPart


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
    def parts(self) -> tuple[RecordedPart, ...]:
        """The graphs with their programs."""
        with collector_off():
            return tuple(RecordedPart(graph) for graph in self.graphs)

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
        return self._in_order([graph.measured for graph in self.graphs])

    @cached_property
    def typical(self) -> dict[str, float]:
        """Seconds of an op of every type where nothing straggles, over all workers and steps.

        The mean of compute (work is shared out evenly), the median of communication (its slow ones are disturbed).
        """
        pools: dict[str, list[Floats]] = {}
        for part in self.parts:
            for optype in dict.fromkeys(part.graph.types):
                pools.setdefault(optype, []).append(part.graph.seconds[part.types == optype].ravel())
        found = {optype: np.concatenate(pool) for optype, pool in sorted(pools.items())}
        return {
            optype: float(np.median(pool) if is_communication(optype) else pool.mean())
            for optype, pool in found.items()
        }

    def typical_of(self, graph: StepGraph) -> Floats:
        """The typical seconds of every op of a graph, as a column."""
        return np.array([self.typical[optype] for optype in graph.types])[:, None]

    def times(self, seconds: Callable[[StepGraph], Floats]) -> Floats:
        """Seconds of every step if ops took ``seconds(graph)`` [op, step]."""
        return self._in_order(
            [part.total(np.broadcast_to(seconds(part.graph), part.graph.seconds.shape)) for part in self.parts]
        )

    def keeping(self, *groups: Chosen) -> list[Floats]:
        """For each group of ops, seconds of every step if only they take what they took, all others what is typical.

        Many groups together take little longer than one.
        """
        found = [self._keeping(part, groups) for part in self.parts]
        return [self._in_order(own) for own in zip(*found, strict=True)]

    def _keeping(self, part: RecordedPart, groups: Sequence[Chosen]) -> Floats:
        """The same of the steps of a part, [group, step]."""
        graph, found = part.graph, []
        typical = self.typical_of(graph)
        at_once = max(1, TOGETHER // max(1, graph.seconds.size))
        for first in range(0, len(groups), at_once):
            some = groups[first : first + at_once]
            found.append(part.keeping(np.stack([group(graph) for group in some], axis=1), typical))
        return np.concatenate(found)

    def keeping_each_replica(self) -> list[Floats]:
        """For each dp rank, seconds of every step if only that one takes what it took."""
        found = []
        for part in self.parts:
            alike = alike_replicas(part.graph)
            if alike is None:
                found.append(self._keeping(part, [having("dp_rank", replica) for replica in range(self.replicas)]))
            else:
                found.append(alike.each_alone(self.typical_of(part.graph)))
        return [self._in_order(own) for own in zip(*found, strict=True)]

    def events(self) -> tuple[Floats, int]:
        """Seconds of every step as recorded, on the event engine, and how many events that took."""
        times, count = [], 0
        for part in self.parts:
            found = [part.events(part.graph.seconds, case) for case in range(len(part.graph.steps))]
            times.append(np.array([seconds for seconds, _ in found]))
            count += sum(events for _, events in found)
        return self._in_order(times), count

    def _in_order(self, of_parts: Sequence[Floats]) -> Floats:
        """Values of the steps, part by part, in the order of ``steps``."""
        steps = np.array([step for graph in self.graphs for step in graph.steps])
        return np.concatenate(list(of_parts))[np.argsort(steps)]
