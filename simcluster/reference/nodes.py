"""The ops of all ranks as a graph: one node an op, with the nodes that must be over before it may begin."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from simcluster.planning.ops import Item, Op, StageProgram
from simcluster.planning.parallel import RankLayout

Lanes = Mapping[tuple[int, str], list["Node"]]
"""Every rank's in-order queues, by rank and name."""


@dataclass(eq=False)
class Node:
    """An op of one rank; times in seconds.

    ``ready`` is when it could have begun by itself, ``start`` when all members of its communication were there and
    ``end`` when it was over; ``last`` is the member that arrived last (itself, of what is no communication).  ``key``
    is the op's name among those of its rank, equal on all ranks that play the same op together.
    """

    rank: int
    stage: int
    op: Op
    item: Item
    key: tuple[Hashable, int]
    before: list[Node] = field(default_factory=list, repr=False)
    ready: float = 0.0
    start: float = 0.0
    end: float = 0.0
    last: Node | None = field(default=None, repr=False)


def lanes_of(programs: Sequence[StageProgram], plan: RankLayout) -> Lanes:
    """The nodes of every rank, lane by lane, each in order; ``programs[rank]`` is the rank's own.

    An op follows the one before it on its lane, those of its segment that it names, and what its item needs: an item of
    its own rank, or of the rank with the same place in another stage.
    """
    stage_ranks = [ranks.tolist() for ranks in plan.stage_ranks()]
    place = {rank: place for ranks in stage_ranks for place, rank in enumerate(ranks)}
    lanes: dict[tuple[int, str], list[Node]] = {}
    over: dict[tuple[int, Hashable], Node] = {}  # by rank and the key of an item: its last node
    needy: list[Node] = []
    for rank, program in enumerate(programs):
        for item in (item for items in program.lanes.values() for item in items):
            nodes: list[Node] = []
            for index, op in enumerate(item.segment.ops):
                lane = lanes.setdefault((rank, op.lane), [])
                before = [*lane[-1:], *(nodes[other] for other in op.after)]
                nodes.append(Node(rank, program.stage, op, item, (item.key, index), before))
                lane.append(nodes[-1])
            needy.append(nodes[0])
            over |= {(rank, key): nodes[-1] for key in (item.key, *item.also)}
    for node in needy:
        for need in node.item.needs:
            node.before.append(over[stage_ranks[need.stage][place[node.rank]], need.key])
    return lanes
