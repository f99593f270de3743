"""What an op does with other ranks: who takes part, what moves over which links, and what it does to computation."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from simcluster.base.clock import on_grid
from simcluster.collectives import Phase
from simcluster.collectives.relayed import RELAYED
from simcluster.devices.interference import Beside, Interference
from simcluster.nccl import bus_factor
from simcluster.planning.ops import Op, Work
from simcluster.planning.parallel import RankLayout
from simcluster.reference.nodes import Node
from simcluster.topology import Cluster
from simcluster.traffic.methods import Methods, Pace, activities, phases_of, round_of
from simcluster.traffic.traffic import Traffic, copy_pattern, group_of, patterns


class InRounds(NamedTuple):
    """A collective to be played round by round: its description, bytes, and the pace of a hop, if NCCL sets one."""

    phases: Sequence[Phase]
    size: float
    pace: Pace | None


class GroupsAndRoutes:
    """The groups and routes of a job, asked op by op."""

    def __init__(self, plan: RankLayout, cluster: Cluster, methods: Methods, interference: Interference | None) -> None:
        self._plan, self._cluster, self._methods, self._interference = plan, cluster, methods, interference
        self._stage_ranks = [ranks.tolist() for ranks in plan.stage_ranks()]
        self._place = {rank: place for ranks in self._stage_ranks for place, rank in enumerate(ranks)}
        self._groups: dict[str, dict[int, tuple[int, ...]]] = {}
        self._traffics: dict[Hashable, tuple[Traffic, ...]] = {}
        self._capacity = cluster.capacity.tolist()

    def members(self, node: Node) -> tuple[int, ...]:
        """The ranks that take part, in the group's order; of a send the sender first."""
        group = node.op.work.group(node.stage)
        assert group is not None, node.op
        if not isinstance(group, str):
            if group[0] == "copy":
                return (node.rank,)
            place = self._place[node.rank]
            return self._stage_ranks[group[1]][place], self._stage_ranks[group[2]][place]
        if group not in self._groups:
            groups = [tuple(each.tolist()) for each in self._plan.groups(group)]
            self._groups[group] = {rank: each for each in groups for rank in each}
        return self._groups[group][node.rank]

    def traffics(self, work: Work, members: tuple[int, ...]) -> tuple[Traffic, ...]:
        """The activities that move it, one after the other."""
        if not work.moves:
            return (Traffic((), 0.0, 1, work.seconds),)
        if (work, members) not in self._traffics:
            self._traffics[work, members] = self._made(work, members)
        return self._traffics[work, members]

    def _made(self, work: Work, members: tuple[int, ...]) -> tuple[Traffic, ...]:
        way = work.group(0)  # a copy's is the same on all stages
        if isinstance(way, tuple) and way[0] == "copy":
            copied = copy_pattern(self._cluster, members[0], way[1]).traffic(work.size)
            return (replace(copied, bound=min(copied.bound, work.bound)),)
        group = group_of(self._cluster, members)
        method = self._methods.of(group, work.moves, work.size)
        found = activities(patterns(self._cluster, members, phases_of(method, group, work.moves)), work.size, method)
        return tuple(replace(traffic, round_bytes=work.load * traffic.round_bytes) for traffic in found)

    def rounds(self, work: Work, members: tuple[int, ...]) -> InRounds:
        """The same for playing it round by round."""
        group = group_of(self._cluster, members)
        method = self._methods.of(group, work.moves, work.size)
        phases = phases_of(method, group, work.moves)
        return InRounds(phases, work.load * work.size, method.pace and round_of(phases, method.pace))

    def pressure(self, op: Op, members: tuple[int, ...]) -> float:
        """How much longer a computation takes beside it that feels it in full; 0 for what blocks its ranks anyway."""
        work, interference = op.work, self._interference
        if interference is None or not work.presses(op.lane):
            return 0.0
        hosts = {self._cluster.host_of[rank] for rank in members}
        sent = self._sent(work, members) if interference.by_rate else 0.0
        return interference.pressure(Beside(len(hosts) > 1, sent, work.moves in RELAYED))

    def drag(self, op: Op) -> float:
        """How much longer it takes itself while one of its ranks computes."""
        return self._interference.drag if self._interference and op.work.presses(op.lane) else 0.0

    def _sent(self, work: Work, members: tuple[int, ...]) -> float:
        """B/s that a GPU sends while the group has all links to itself."""
        size, alone = work.size, on_grid(work.seconds)
        if work.axis:
            size *= work.load * bus_factor(cast(Any, work.moves), len(members))
        if work.moves:
            alone = sum(traffic.alone_seconds(self._capacity) for traffic in self.traffics(work, members))
        return size / alone if alone > 0 else 0.0
