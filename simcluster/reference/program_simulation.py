"""Entry point of the reference simulator: simulates all stage programs and records the step."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import chain, pairwise

import numpy as np

from simcluster.base.arrays import Int32s
from simcluster.base.clock import Profile, round_to_tick
from simcluster.base.progress import report_phase
from simcluster.planning.disturbances import UNDISTURBED, Disturbances
from simcluster.planning.ops import StageProgram
from simcluster.reference.communication import JobCommunication
from simcluster.reference.dependency_graph import Lanes, OpNode, build_dependency_graph
from simcluster.reference.step_record import OpDependencies, OpSpanLabel, OpTable, OpTimes, StepRecord
from simcluster.reference.step_simulation import ReferenceSimulation
from simcluster.topology import Cluster


@report_phase("simulating")
def simulate_programs(
    programs: Sequence[StageProgram],
    cluster: Cluster,
    communication: JobCommunication,
    slowness: Sequence[float],
    disturbances: Disturbances,
    *,
    in_steps: bool,
    engine: str = "reference",
    why: str = "engine: reference",
) -> StepRecord:
    """Simulate the stage programs on all ranks, and return the record of the step.

    Raises DeadlockError when ops are left that can never begin.
    """
    stage = communication.stage_of_rank
    own = {rank: programs[stage(rank)] for rank in communication.simulated_ranks}
    if disturbances is not UNDISTURBED:
        own = {rank: disturbances.disturbed_program(rank, program) for rank, program in own.items()}
    lanes = build_dependency_graph(own, communication.peer_rank)
    speeds = {rank: disturbances.speeds[rank] for rank in own if rank in disturbances.speeds}
    profiles = speeds, disturbances.capacities
    done = ReferenceSimulation(lanes, cluster, communication, slowness, *profiles, in_steps=in_steps)
    nodes = sorted(chain.from_iterable(lanes.values()), key=lambda node: node.number)
    return StepRecord(
        lane_rank=_as_int32([rank for rank, _ in lanes]),
        lane_stage=_as_int32([ops[0].stage for ops in lanes.values()]),
        lane_end=np.array([ops[-1].end for ops in lanes.values()]),
        events=done.events,
        engine=engine,
        why=why,
        make_ops=lambda: _make_op_table(nodes, lanes, done, communication, slowness, speeds),
        make_times=lambda: _make_op_times(nodes),
    )


def _make_op_times(nodes: Sequence[OpNode]) -> OpTimes:
    ready, start, end = (np.array([getattr(node, name) for node in nodes]) for name in ("ready", "start", "end"))
    return OpTimes(ready, start, end, np.array([(node.last_arrival or node).number for node in nodes], dtype=np.int64))


def _make_op_table(
    nodes: Sequence[OpNode],
    lanes: Lanes,
    simulation: ReferenceSimulation,
    communication: JobCommunication,
    slowness: Sequence[float],
    speeds: Mapping[int, Profile],
) -> OpTable:
    places: dict[OpSpanLabel, int] = {}
    known: dict[Hashable, int] = {}  # by identity of the op and what it moves

    def label_index(node: OpNode) -> int:
        """Return the index of the node's label in the list of distinct labels; -1 if the node has no label."""
        op, work = node.op, node.op.work
        if work.joins:
            return -1
        traffics = communication.traffic_of_work(work, communication.group_members(node)) if work.traffic_kind else ()
        if (id(op), id(traffics)) not in known:
            label = OpSpanLabel(
                op.stream, op.kind, op.name, op.layer, work.axis, work.size * work.load, op.memory, traffics,
                work.sensitivity,
            )  # fmt: skip
            known[id(op), id(traffics)] = places.setdefault(label, len(places))
        return known[id(op), id(traffics)]

    label = _as_int32([label_index(node) for node in nodes])
    lane_of = {node: lane for lane, ops in enumerate(lanes.values()) for node in ops}
    meeting, parties = np.full(len(nodes), -1, dtype=np.int32), np.ones(len(nodes), dtype=np.int32)
    for number, each in enumerate(simulation.meetings.values()):
        ops = [node.number for node in each.arrived]
        meeting[ops], parties[ops] = number, len(ops)
    sent = [(other.number, node.number) for node in nodes for other in node.predecessors if other.rank != node.rank]
    sends, receivers = np.array(sent, dtype=np.int64).reshape(-1, 2).T
    return OpTable(
        labels=list(places),
        label=label,
        lane=_as_int32([lane_of[node] for node in nodes]),
        step=_as_int32([node.item.step for node in nodes]),
        chunk=_as_int32([node.item.chunk for node in nodes]),
        microbatch=_as_int32([node.item.microbatch for node in nodes]),
        seconds=np.array([_op_seconds(node, slowness) for node in nodes]),
        meeting=meeting,
        parties=parties,
        receives=(sends, receivers),
        lane_rank=_as_int32([rank for rank, _ in lanes]),
        lane_stage=_as_int32([ops[0].stage for ops in lanes.values()]),
        lane_name=[name for _, name in lanes],
        speeds=speeds,
        make_dependencies=lambda: _make_dependencies(nodes, lanes),
    )


def _op_seconds(node: OpNode, slowness: Sequence[float]) -> float:
    work = node.op.work
    if work.group(node.stage) is not None:
        return 0.0
    return round_to_tick(work.seconds if work.sensitivity is None else work.seconds * slowness[node.rank])


def _make_dependencies(nodes: Sequence[OpNode], lanes: Lanes) -> OpDependencies:
    previous = {node: earlier for ops in lanes.values() for earlier, node in pairwise(ops)}
    others = [[other.number for other in node.predecessors if other is not previous.get(node)] for node in nodes]
    first = np.cumsum([0, *map(len, others)])
    return OpDependencies(first, np.array([*chain.from_iterable(others)], dtype=np.int64))


def _as_int32(values: Sequence[int]) -> Int32s:
    return np.array(values, dtype=np.int32)
