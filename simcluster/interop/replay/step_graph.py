"""Graph of one step of a recorded job: ops that wait for each other, stored as arrays with one element per op.

A worker has in-order lanes: "main" (compute, and the collectives that block it), one per half of messages, and one per
kind of collective that overlaps with compute. Ops of a group begin together; each ends its own seconds after the last
arrival. In the engine's program an op that meets others is two ops: an arrival, then its own seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain
from typing import Any, Literal

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.engine.explicit_program import ExplicitProgram
from simcluster.engine.run import simulate_tables
from simcluster.engine.tables import CommunicationKind
from simcluster.interop.replay.longest_path import LongestPath, ReplayedOpTimes
from simcluster.interop.replay.recorded_trace import COLLECTIVE_PREFIX, COLLECTIVE_SCOPES, MESSAGE_TYPES
from simcluster.traffic.traffic import Traffic

MAIN_LANE = "main"
HOST, COPY = "host", "copy"
"""Op types of profiles during which a GPU does not compute."""
Lane = tuple[int, str]
"""(worker, name)."""


@cache
def is_communication_type(optype: str) -> bool:
    """Return whether ops of a type are messages or collectives, whose durations depend on other ranks."""
    known = (*MESSAGE_TYPES, *MESSAGE_TYPES.values(), *COLLECTIVE_SCOPES)
    return optype in known or optype.startswith(COLLECTIVE_PREFIX)


@dataclass(frozen=True)
class StepGraph:
    """Graph of the ops that each of several equal steps runs; worker number = dp_rank x ``stages`` + stage.

    ``optype`` is an op's type in the trace. ``seconds[op, step]`` is its own duration (messages and collectives: from
    the last arrival on). ``recorded_start`` and ``recorded_end`` are its recorded times, 0 if none.
    """

    stages: int
    steps: tuple[int, ...]
    optype: tuple[str, ...]
    worker: Ints
    microbatch: Ints
    chunk: Ints  # index of the chunk in the whole model; -1 for none
    lanes: dict[Lane, tuple[int, ...]]
    after: tuple[tuple[int, ...], ...]
    groups: tuple[tuple[int, ...], ...]
    seconds: Floats
    recorded_start: Floats
    recorded_end: Floats

    def __len__(self) -> int:
        return len(self.optype)

    @property
    def dp_rank(self) -> Ints:
        """Data-parallel rank of every op's worker."""
        return self.worker // self.stages

    @property
    def stage(self) -> Ints:
        """Pipeline stage of every op's worker."""
        return self.worker % self.stages

    @cached_property
    def type_codes(self) -> tuple[tuple[str, ...], Ints]:
        """Distinct op types, and the index of each op's type among them."""
        place: dict[str, int] = {}
        codes = [place.setdefault(optype, len(place)) for optype in self.optype]
        return tuple(place), np.array(codes, dtype=np.int64)

    def type_mask(self, matches: Callable[[str], bool]) -> Bools:
        """Return a mask of the ops whose type satisfies a predicate function."""
        kinds, codes = self.type_codes
        return np.array([matches(optype) for optype in kinds], dtype=bool)[codes]

    @cached_property
    def reported_types(self) -> tuple[str, ...]:
        """Type of every op as shown in reports, where a message's send and receive share one name."""
        return tuple([MESSAGE_TYPES.get(optype, optype) for optype in self.optype])

    @property
    def measured_seconds(self) -> Floats:
        """Recorded seconds of every step, from first start to last end."""
        return np.asarray(self.recorded_end.max(axis=0) - self.recorded_start.min(axis=0))

    def describe_op(self, op: int) -> str:
        """Describe an op for error messages: its worker, type and microbatch."""
        worker = int(self.worker[op])
        microbatch = f", microbatch {self.microbatch[op]}" if self.microbatch[op] >= 0 else ""
        return f"dp_rank {worker // self.stages}, stage {worker % self.stages}: {self.optype[op]}{microbatch}"


OpFilter = Callable[[StepGraph], Bools]
"""A function that returns a mask of a graph's ops."""


def communication_mask(graph: StepGraph) -> Bools:
    """Return a mask over ops that is true for messages and collectives."""
    return graph.type_mask(is_communication_type)


def compute_mask(graph: StepGraph) -> Bools:
    """Return a mask over ops that is true where a rank's GPU (or CPU) computes."""
    return graph.type_mask(lambda optype: not is_communication_type(optype) and optype not in (HOST, COPY))


def make_op_filter(column: Literal["types", "dp_rank", "stage", "worker"], *values: Any) -> OpFilter:
    """Return a filter that selects ops by type, dp rank, stage or worker: those with one of the given values."""
    if column == "types":
        return lambda graph: graph.type_mask(lambda optype: MESSAGE_TYPES.get(optype, optype) in values)
    return lambda graph: np.isin(getattr(graph, column), values)


SWEEP_SIZE = 4_000_000
"""Durations per sweep: most ops of a pipeline wait for one other, so that a sweep of one case is mostly overhead;
more than this exceeds a cache."""
_TICKS_PER_SECOND = 2.0**44  # of the clock's grid, per second
_NO_TRAFFIC = Traffic((), 0.0, 1, 0.0)


class StepProgram:
    """A step graph and the equivalent program for the event engine.

    ``first_ops[op]`` is the program's op at which a recorded op arrives, ``last_ops[op]`` the one that takes its time.
    """

    def __init__(self, graph: StepGraph) -> None:
        self.graph = graph
        self.types = np.array(graph.reported_types)
        self.first_ops = np.zeros(len(graph), dtype=np.int64)
        self.last_ops = np.zeros(len(graph), dtype=np.int64)
        self._program = self._make_program()
        self._sweep = LongestPath(self._program)

    def replay(self, seconds: Floats) -> ReplayedOpTimes:
        """Replay all steps at once with durations [op, step] (s); return the times of all ops."""
        return self._sweep(self._program_op_seconds(seconds))

    def total_seconds(self, seconds: Floats) -> Floats:
        """Replay each column of ``seconds`` [op, column], a set of op durations; return the step times (s)."""
        return self._sweep.total_seconds(self._program_op_seconds(seconds))

    def step_seconds_keeping(self, kept: Bools, typical: Floats) -> Floats:
        """Return step times [column, step] (s); op durations are recorded where ``kept`` [op, column], else typical."""
        own, usual = (self._program_op_seconds(each) for each in np.broadcast_arrays(self.graph.seconds, typical))
        chosen = np.zeros((len(own), kept.shape[1]), dtype=bool)
        chosen[self.last_ops] = kept
        cases = np.where(chosen[:, :, None], own[:, None], usual[:, None])
        return self._sweep.total_seconds(cases.reshape(len(own), -1)).reshape(kept.shape[1], -1)

    def simulate_events(self, seconds: Floats, step: int) -> tuple[float, int]:
        """Simulate one step on the event engine; return the step time (s) and the number of events."""
        program = replace(self._program, seconds=self._program_op_seconds(seconds)[:, step].tolist())
        found = simulate_tables(program.make_tables([]), "op {}".format, keeps_times=False)
        return float(found.lane_end.max()), found.events

    def _program_op_seconds(self, op_seconds: Floats) -> Floats:
        """Convert durations of graph ops to those of program ops [op, column], rounded to the clock's ticks."""
        found = np.full((len(self._program.seconds), op_seconds.shape[1]), -1.0)
        found[self.last_ops] = np.round(op_seconds * _TICKS_PER_SECOND) / _TICKS_PER_SECOND
        return found

    def _make_program(self) -> ExplicitProgram:
        graph, program = self.graph, ExplicitProgram()
        meeting = np.full(len(graph), -1, dtype=np.int64)
        known: dict[int, CommunicationKind] = {}
        for group in graph.groups:
            meeting[list(group)] = len(program.meetings)
            barrier = CommunicationKind(len(group), [_NO_TRAFFIC])
            program.meetings.append(known.setdefault(len(group), barrier))
        lanes = sorted(graph.lanes.items(), key=lambda lane: (lane[0][0], lane[0][1] != MAIN_LANE))
        for (worker, _), _ in lanes:
            program.add_lane(worker)
        self._add_ops(program, [ops for _, ops in lanes], meeting)
        first, last = self.first_ops.tolist(), self.last_ops.tolist()
        for op, others in enumerate(graph.after):
            if others:
                program.after[first[op]] = [last[other] for other in others]
        return program

    def _add_ops(self, program: ExplicitProgram, lanes: Sequence[Sequence[int]], rendezvous: Ints) -> None:
        """Add the ops of all lanes to the engine's program: two per message or collective, one per other op."""
        ops = np.fromiter(chain.from_iterable(lanes), dtype=np.int64)
        times = 1 + (rendezvous[ops] >= 0)
        over = np.cumsum(times)
        self.last_ops[ops] = over - 1
        self.first_ops[ops] = over - times
        count = int(times.sum())
        met = np.full(count, -1, dtype=np.int64)
        meets = ops[times > 1]
        met[self.first_ops[meets]] = rendezvous[meets]
        program.seconds = [0.0] * count
        program.sensitivity = [-1.0] * count
        program.meeting = met.tolist()
        program.position = [0] * count
        program.after = [()] * count
        of_op = np.repeat(np.arange(len(lanes)), [*map(len, lanes)])
        program.lane = np.repeat(of_op, times).tolist()
