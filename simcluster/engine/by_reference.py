"""A step as the reference interpreter plays it, in the record that every measurement reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from simcluster.base.telling import phase
from simcluster.engine.record import Record, when_over
from simcluster.planning.ops import StageProgram
from simcluster.planning.parallel import RankLayout
from simcluster.planning.perturbations import Disturbances
from simcluster.programs.program import OpTimes, Program
from simcluster.reference.communication import GroupsAndRoutes
from simcluster.reference.nodes import Lanes, Node, lanes_of
from simcluster.reference.plain import Player
from simcluster.topology import Cluster


@phase("simulating")
def play_plainly(
    program: Program,
    programs: Sequence[StageProgram],
    plan: RankLayout,
    cluster: Cluster,
    communication: GroupsAndRoutes,
    slowness: Sequence[float],
    disturbances: Disturbances,
    *,
    in_steps: bool,
) -> Record:
    """The record of ``program``, whose ranks are not folded nor its ops collapsed, with the times of the reference.

    Raises DeadlockError when ops are left that can never begin.
    """
    stage_of = {rank: stage for stage, ranks in enumerate(plan.stage_ranks()) for rank in ranks.tolist()}
    own = [disturbances.program(rank, programs[stage_of[rank]]) for rank in range(plan.num_ranks)]
    lanes = lanes_of(own, plan)
    player = Player(
        lanes, cluster, communication, slowness, disturbances.speeds, disturbances.capacities, in_steps=in_steps
    )
    return _record(program, lanes, player.events)


def _record(program: Program, lanes: Lanes, events: int) -> Record:
    by_op: dict[int, Node] = {}
    for ops, rank, name in zip(program.lanes, program.lane_rank, program.lane_name, strict=True):
        by_op |= zip(ops, lanes[rank, name], strict=True)
    nodes = [by_op[op] for op in range(len(program.seconds))]
    number = {node: op for op, node in by_op.items()}
    ready, start, end = (np.array([getattr(node, name) for node in nodes]) for name in ("ready", "start", "end"))
    last = np.array([op if node.last is None else number[node.last] for op, node in enumerate(nodes)], dtype=np.int64)
    columns = OpTimes(ready, start, end, last)
    slowed: Mapping[int, tuple[tuple[float, float], ...]] = {
        op: ((0.0, node.end - node.start),)
        for op, node in enumerate(nodes)
        if program.meeting[op] < 0 and program.row_sets[program.rows[op]]
    }
    return Record(when_over(program, end.tolist()), lambda: columns, events, slowed, "reference", "engine: reference")
