"""A recorded step as a program of the engine: an arrival where ops of a group meet, then the op's own seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, pairwise

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.engine.explicit import ExplicitProgram
from simcluster.engine.run import simulate_tables
from simcluster.engine.tables import CommunicationKind
from simcluster.interop.recorded.graph import MAIN, StepGraph
from simcluster.interop.recorded.longest_path import LongestPath, PathTimes
from simcluster.traffic.traffic import Traffic

TOGETHER = 4_000_000
"""Durations that are swept at once: most ops of a pipeline wait for one other, so a sweep of one case is all overhead;
more than this no longer fits a cache."""
_TICKS = 2.0**44  # of the clock's grid, a second
_NOTHING = Traffic((), 0.0, 1, 0.0)


class RecordedPart:
    """A graph with its program: the steps of a job that are alike.

    ``first[op]`` is the program's op where a recorded one arrives, ``last[op]`` the one where it spends its time.
    """

    def __init__(self, graph: StepGraph) -> None:
        self.graph = graph
        self.types = np.array(graph.types)
        self.first = np.zeros(len(graph), dtype=np.int64)
        self.last = np.zeros(len(graph), dtype=np.int64)
        self._program = self._make_program()
        self._sweep = LongestPath(self._program)

    def play(self, seconds: Floats) -> PathTimes:
        """The steps with these durations [op, step], in one sweep."""
        return self._sweep(self._seconds(seconds))

    def total(self, seconds: Floats) -> Floats:
        """Seconds of as many cases with these durations [op, case], in one sweep."""
        return self._sweep.total(self._seconds(seconds))

    def keeping(self, kept: Bools, typical: Floats) -> Floats:
        """Seconds [case, step] if only the ops ``kept`` [op, case] take what they took, all others what is typical."""
        own, usual = (self._seconds(each) for each in np.broadcast_arrays(self.graph.seconds, typical))
        chosen = np.zeros((len(own), kept.shape[1]), dtype=bool)
        chosen[self.last] = kept
        cases = np.where(chosen[:, :, None], own[:, None], usual[:, None])
        return self._sweep.total(cases.reshape(len(own), -1)).reshape(kept.shape[1], -1)

    def events(self, seconds: Floats, case: int) -> tuple[float, int]:
        """Simulate one step by events: return its seconds, and how many events that took."""
        program = replace(self._program, seconds=self._seconds(seconds)[:, case].tolist())
        found = simulate_tables(program.tables([]), "op {}".format, keeps_times=False)
        return float(found.lane_end.max()), found.events

    def _seconds(self, of_ops: Floats) -> Floats:
        """Durations of the program's ops [op, case] from those of the recorded ones, on the clock's grid."""
        found = np.full((len(self._program.seconds), of_ops.shape[1]), -1.0)
        found[self.last] = np.round(of_ops * _TICKS) / _TICKS
        return found

    def _make_program(self) -> ExplicitProgram:
        """Return the program, without durations."""
        graph, program = self.graph, ExplicitProgram()
        meeting = np.full(len(graph), -1, dtype=np.int64)
        known: dict[int, CommunicationKind] = {}
        for group in graph.groups:
            meeting[list(group)] = len(program.meetings)
            barrier = CommunicationKind(len(group), [_NOTHING])
            program.meetings.append(known.setdefault(len(group), barrier))
        lanes = sorted(graph.lanes.items(), key=lambda lane: (lane[0][0], lane[0][1] != MAIN))
        for (worker, _), _ in lanes:
            program.add_lane(worker)
        self._add_ops(program, [ops for _, ops in lanes], meeting)
        first, last = self.first.tolist(), self.last.tolist()
        for op, others in enumerate(graph.after):
            if others:
                program.after[first[op]] = [last[other] for other in others]
        return program

    def _add_ops(self, program: ExplicitProgram, lanes: Sequence[Sequence[int]], meeting: Ints) -> None:
        """Add the ops of all lanes, as columns: two for one that meets others, one for any other."""
        ops = np.fromiter(chain.from_iterable(lanes), dtype=np.int64)
        times = 1 + (meeting[ops] >= 0)
        over = np.cumsum(times)
        self.last[ops] = over - 1
        self.first[ops] = over - times
        count = int(times.sum())
        met = np.full(count, -1, dtype=np.int64)
        meets = ops[times > 1]
        met[self.first[meets]] = meeting[meets]
        program.seconds = [0.0] * count
        program.sensitivity = [-1.0] * count
        program.meeting = met.tolist()
        program.position = [0] * count
        program.after = [()] * count
        ends = np.append(0, over)[np.cumsum([0, *map(len, lanes)])].tolist()
        for lane, (begin, end) in zip(program.lanes, pairwise(ends), strict=True):
            lane.extend(range(begin, end))
