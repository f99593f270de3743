"""Dependency graph of all simulated ranks: one node per op, linked to the earlier ops that the op waits for."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

from simcluster.planning.ops import Op, StageProgram, WorkItem

Lanes = Mapping[tuple[int, str], list["OpNode"]]
"""Nodes in order on every lane (in-order queue), by rank and name of the lane."""


@dataclass(eq=False)
class OpNode:
    """An op of one rank in the dependency graph, with its simulated times (s).

    ``number`` counts nodes rank by rank, in the order of the rank's program. ``ready`` is when it could have begun
    alone, ``start`` when all members of its communication had arrived, ``end`` when it was over; ``last_arrival`` is
    the member that arrived last (the node itself without communication). ``key`` is the op's name within its rank,
    equal on all ranks that do the same op together. The nodes ``predecessors`` include the one before it on its lane.
    """

    number: int
    rank: int
    stage: int
    op: Op
    item: WorkItem
    key: tuple[Hashable, int]
    predecessors: list[OpNode] = field(default_factory=list, repr=False)
    ready: float = 0.0
    start: float = 0.0
    end: float = 0.0
    last_arrival: OpNode | None = field(default=None, repr=False)


def build_dependency_graph(programs: Mapping[int, StageProgram], peer: Callable[[int, int], int]) -> Lanes:
    """Build the dependency graph: one node per op of every simulated rank, as lists of ops that run in order.

    ``programs`` has each rank's ops. An op follows the one before it on its lane, those of its segment that it names,
    and what its item needs: an item of the same rank, or of the rank at the same position in another stage,
    ``peer(rank, stage)``.
    """
    lanes: dict[tuple[int, str], list[OpNode]] = {}
    over: dict[tuple[int, Hashable], OpNode] = {}  # by rank and the key of an item: its last node
    needy: list[OpNode] = []
    count = 0
    for rank, program in programs.items():
        for item in (item for items in program.lanes.values() for item in items):
            nodes: list[OpNode] = []
            for index, op in enumerate(item.segment.ops):
                lane = lanes.setdefault((rank, op.lane), [])
                before = [*lane[-1:], *(nodes[other] for other in op.after)]
                nodes.append(OpNode(count, rank, program.stage, op, item, (item.key, index), before))
                lane.append(nodes[-1])
                count += 1
            needy.append(nodes[0])
            over |= {(rank, key): nodes[-1] for key in (item.key, *item.also)}
    for node in needy:
        node.predecessors += [over[peer(node.rank, need.stage), need.key] for need in node.item.needs]
    return lanes
