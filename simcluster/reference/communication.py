"""What an op does with other ranks: who takes part, what moves over which links, and what it does to computation."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from simcluster.clock import on_grid
from simcluster.collectives import Phase
from simcluster.devices.interference import Beside, Interference
from simcluster.nccl import bus_factor
from simcluster.planning.ops import MAIN, Collective, Copy, Op, Receive, Timed, Transfer
from simcluster.planning.parallel import Layout
from simcluster.reference.nodes import Node
from simcluster.topology import Cluster
from simcluster.traffic.methods import Methods, Pace, activities, phases_of, round_of
from simcluster.traffic.traffic import Traffic, copy_pattern, group_of, patterns

Moving = Collective | Timed | Transfer | Copy


class Rounds(NamedTuple):
    """A collective to be played round by round: its description, bytes, and the pace of a hop, if NCCL sets one."""

    phases: Sequence[Phase]
    size: float
    pace: Pace | None


class Communication:
    """The groups and routes of a job, asked op by op."""

    def __init__(self, plan: Layout, cluster: Cluster, methods: Methods, interference: Interference | None) -> None:
        self._plan, self._cluster, self._methods, self._interference = plan, cluster, methods, interference
        self._stage_ranks = [ranks.tolist() for ranks in plan.stage_ranks()]
        self._place = {rank: place for ranks in self._stage_ranks for place, rank in enumerate(ranks)}
        self._groups: dict[str, dict[int, tuple[int, ...]]] = {}
        self._traffics: dict[Hashable, tuple[Traffic, ...]] = {}
        self._capacity = cluster.capacity.tolist()

    def members(self, node: Node) -> tuple[int, ...]:
        """The ranks that take part, in the group's order; of a send the sender first."""
        work, place = node.op.work, self._place[node.rank]
        if isinstance(work, Transfer):
            return node.rank, self._stage_ranks[work.to_stage][place]
        if isinstance(work, Receive):
            return self._stage_ranks[work.from_stage][place], node.rank
        if isinstance(work, Copy):
            return (node.rank,)
        assert isinstance(work, Collective | Timed), work
        if work.axis not in self._groups:
            groups = [tuple(group.tolist()) for group in self._plan.groups(work.axis)]
            self._groups[work.axis] = {rank: group for group in groups for rank in group}
        return self._groups[work.axis][node.rank]

    def parties(self, node: Node, members: tuple[int, ...]) -> int:
        """How many ops have to arrive before it begins: a receiver comes only where the two meet at a rendezvous."""
        work = node.op.work
        if isinstance(work, Transfer):
            return 2 if work.rendezvous else 1
        return 2 if isinstance(work, Receive) else len(members)

    def traffics(self, work: Moving, members: tuple[int, ...]) -> tuple[Traffic, ...]:
        """The activities that move it, one after the other."""
        if not isinstance(work, Collective) and (isinstance(work, Timed) or work.seconds >= 0):
            return (Traffic((), 0.0, 1, work.seconds),)
        if (work, members) not in self._traffics:
            self._traffics[work, members] = self._made(work, members)
        return self._traffics[work, members]

    def _made(self, work: Collective | Transfer | Copy, members: tuple[int, ...]) -> tuple[Traffic, ...]:
        if isinstance(work, Copy):
            return (copy_pattern(self._cluster, members[0], work.direction).traffic(work.size),)
        kind, load = (work.kind, work.load) if isinstance(work, Collective) else ("send", 1.0)
        group = group_of(self._cluster, members)
        method = self._methods.of(group, kind, work.size)
        parts = patterns(self._cluster, members, phases_of(method, group, kind))
        return tuple(
            replace(traffic, round_bytes=load * traffic.round_bytes) for traffic in activities(parts, work.size, method)
        )

    def rounds(self, work: Collective, members: tuple[int, ...]) -> Rounds:
        """The same for playing it round by round."""
        group = group_of(self._cluster, members)
        method = self._methods.of(group, work.kind, work.size)
        phases = phases_of(method, group, work.kind)
        return Rounds(phases, work.load * work.size, method.pace and round_of(phases, method.pace))

    def pressure(self, op: Op, members: tuple[int, ...]) -> float:
        """How much longer a computation takes beside it that feels it in full; 0 for what blocks its ranks anyway."""
        work, interference = op.work, self._interference
        if interference is None or not _beside(op):
            return 0.0
        assert isinstance(work, Collective | Timed | Transfer), work
        hosts = {self._cluster.host_of[rank] for rank in members}
        sent = self._sent(work, members) if interference.by_rate else 0.0
        return interference.pressure(Beside(len(hosts) > 1, sent))

    def drag(self, op: Op) -> float:
        """How much longer it takes itself while one of its ranks computes."""
        return self._interference.drag if self._interference and _beside(op) else 0.0

    def _sent(self, work: Collective | Timed | Transfer, members: tuple[int, ...]) -> float:
        """B/s that a GPU sends while the group has all links to itself."""
        if isinstance(work, Timed):
            return 0.0
        size = work.size
        if isinstance(work, Collective):
            size *= work.load * bus_factor(cast(Any, work.kind), len(members))
        elif work.seconds >= 0:
            return size / on_grid(work.seconds) if work.seconds else 0.0
        alone = sum(traffic.alone_seconds(self._capacity) for traffic in self.traffics(work, members))
        return size / alone if alone > 0 else 0.0


def _beside(op: Op) -> bool:
    """Does it go on beside computation and take SMs from it?  A copy engine takes none."""
    return (op.lane != MAIN or isinstance(op.work, Transfer)) and not isinstance(op.work, Copy)
