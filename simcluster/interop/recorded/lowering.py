"""A recorded step as a program of the engine: an arrival where ops of a group meet, then the op's own seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.interop.recorded.graph import MAIN, StepGraph, is_communication
from simcluster.interop.recorded.trace import BACKWARD, FORWARD, MESSAGES, SCOPES
from simcluster.programs.program import Meeting, Program, SpanRow
from simcluster.traffic.traffic import Traffic

_TICKS = 2.0**44  # of the clock's grid, a second

STREAMS = {"replicas": "dp", "pipeline": "pp", "job": "pp", "worker": "tp"}
_KINDS = {
    FORWARD: "forward",
    BACKWARD: "backward",
    "optimizer": "optimizer",
    "params-all-gather": "all_gather",
    "grads-reduce-scatter": "reduce_scatter",
}


@dataclass(frozen=True)
class LoweredGraph:
    """The program of a graph; ``first[op]`` is where a recorded op arrives, ``last[op]`` where it spends its time."""

    program: Program
    first: Ints
    last: Ints

    def seconds(self, of_ops: Floats) -> Floats:
        """Durations of the program's ops [op, case] from those of the recorded ones, on the clock's grid."""
        found = np.full((len(self.program.seconds), of_ops.shape[1]), -1.0)
        found[self.last] = np.round(of_ops * _TICKS) / _TICKS
        return found

    def of_case(self, seconds: Floats, case: int) -> Program:
        """The program with the durations of one case, for the engine."""
        return replace(self.program, seconds=seconds[:, case].tolist())


def stream_of(optype: str) -> str:
    """The stream of the timeline that ops of a type are on."""
    if optype in MESSAGES:
        return "pp"
    return STREAMS[SCOPES[optype]] if optype in SCOPES else "compute"


def kind_of(optype: str) -> str:
    """The timeline's kind of an op type."""
    if optype in MESSAGES:
        return optype.rpartition("-")[2]
    return _KINDS.get(optype, "all_reduce" if is_communication(optype) else "other")


def lower(graph: StepGraph) -> LoweredGraph:
    """The program of a graph, without durations."""
    program = Program()
    rows = {optype: number for number, optype in enumerate(dict.fromkeys(graph.optype))}
    program.row_sets = [
        (SpanRow(stream_of(optype), kind_of(optype), optype, -1, "", 0.0, 0.0, 0.0),) for optype in rows
    ]
    meeting = np.full(len(graph), -1, dtype=np.int64)
    for group in graph.groups:
        meeting[list(group)] = len(program.meetings)
        program.meetings.append(Meeting(len(group), (Traffic((), 0.0, 1, 0.0),)))
    first = np.zeros(len(graph), dtype=np.int64)
    last = np.zeros(len(graph), dtype=np.int64)
    stages = graph.stages
    for (worker, name), ops in sorted(graph.lanes.items(), key=lambda lane: (lane[0][0], lane[0][1] != MAIN)):
        lane = program.add_lane(worker, worker % stages, name)
        for op in ops:
            microbatch, row = int(graph.microbatch[op]), rows[graph.optype[op]]
            if meeting[op] >= 0:
                first[op] = program.add_op(lane, row, meeting=int(meeting[op]), microbatch=microbatch)
            last[op] = program.add_op(lane, row, seconds=0.0, microbatch=microbatch)
            if meeting[op] < 0:
                first[op] = last[op]
    for op, others in enumerate(graph.after):
        program.after[int(first[op])] = tuple(int(last[other]) for other in others)
    return LoweredGraph(program, first, last)
