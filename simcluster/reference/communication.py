"""Communication in the reference simulator: members, traffic on links, effect on concurrent compute."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, cast

from simcluster.collectives import Phase
from simcluster.collectives.relayed import RELAYED
from simcluster.devices.interference import Communication, Interference
from simcluster.planning.ops import Op, Work
from simcluster.planning.parallel import RankLayout
from simcluster.reference.nodes import Node
from simcluster.topology import Cluster
from simcluster.traffic.methods import Methods, Pace, make_activities, phases_of, round_pace
from simcluster.traffic.nccl.case import bus_factor
from simcluster.traffic.traffic import Traffic, copy_pattern, group_of, patterns


class RoundPlan(NamedTuple):
    """Plan of a collective simulated round by round: phases, bytes, and NCCL's latency and rate per hop."""

    phases: Sequence[Phase]
    size: float
    pace: Pace | None


class GroupsAndRoutes:
    """Groups and routes of a job for the reference simulator, which simulates every rank and link."""

    def __init__(self, plan: RankLayout, cluster: Cluster, methods: Methods, interference: Interference | None) -> None:
        self._plan, self._cluster, self._methods, self._interference = plan, cluster, methods, interference
        self._groups: dict[str, dict[int, tuple[int, ...]]] = {}
        self._traffics: dict[Hashable, tuple[Traffic, ...]] = {}

    @cached_property
    def _stage_ranks(self) -> list[list[int]]:
        return [ranks.tolist() for ranks in self._plan.stage_ranks()]

    @cached_property
    def _positions(self) -> dict[int, tuple[int, int]]:
        stages = enumerate(self._stage_ranks)
        return {rank: (stage, place) for stage, ranks in stages for place, rank in enumerate(ranks)}

    @property
    def ranks(self) -> Sequence[int]:
        """Ranks to simulate."""
        return range(self._plan.num_ranks)

    @cached_property
    def capacity(self) -> list[float]:
        """Capacity of every link (B/s)."""
        found: list[float] = self._cluster.capacity.tolist()
        return found

    def stage(self, rank: int) -> int:
        """Return the pipeline stage of a rank."""
        return self._positions[rank][0]

    def peer(self, rank: int, stage: int) -> int:
        """Return the rank at the same position in another pipeline stage."""
        return self._stage_ranks[stage][self._positions[rank][1]]

    def members(self, node: Node) -> tuple[int, ...]:
        """Return the simulated ranks of an op's group, in order; for a send, the sender first."""
        group = node.op.work.group(node.stage)
        assert group is not None, node.op
        if not isinstance(group, str):
            if group[0] == "copy":
                return (node.rank,)
            return self.peer(node.rank, group[1]), self.peer(node.rank, group[2])
        if group not in self._groups:
            groups = [tuple(each.tolist()) for each in self._plan.groups(group)]
            self._groups[group] = {rank: each for each in groups for rank in each}
        return self._groups[group][node.rank]

    def traffics(self, work: Work, members: tuple[int, ...]) -> tuple[Traffic, ...]:
        """Return the transfers of a communication among these members, in the order in which they run."""
        if not work.traffic_kind:
            return (Traffic((), 0.0, 1, work.seconds),)
        if (work, members) not in self._traffics:
            self._traffics[work, members] = self._make_traffics(work, members)
        return self._traffics[work, members]

    def _make_traffics(self, work: Work, members: tuple[int, ...]) -> tuple[Traffic, ...]:
        way = work.group(0)  # a copy's is the same on all stages
        if isinstance(way, tuple) and way[0] == "copy":
            copied = copy_pattern(self._cluster, members[0], way[1]).traffic(work.size)
            return (replace(copied, bound=min(copied.bound, work.bound)),)
        group = group_of(self._cluster, members)
        method = self._methods.of(group, work.traffic_kind, work.size)
        found = make_activities(
            patterns(self._cluster, members, phases_of(method, group, work.traffic_kind)), work.size, method
        )
        return tuple(replace(traffic, round_bytes=work.load * traffic.round_bytes) for traffic in found)

    def rounds(self, work: Work, members: tuple[int, ...]) -> RoundPlan:
        """Return a collective's phases, bytes and hop times, for simulating it round by round."""
        group = group_of(self._cluster, members)
        method = self._methods.of(group, work.traffic_kind, work.size)
        phases = phases_of(method, group, work.traffic_kind)
        return RoundPlan(phases, work.load * work.size, method.pace and round_pace(phases, method.pace))

    def pressure(self, op: Op, members: tuple[int, ...]) -> float:
        """Return how much an op's communication slows concurrent compute of sensitivity 1 (0.1: 10 %)."""
        work, interference = op.work, self._interference
        if interference is None or not work.slows_compute(op.lane):
            return 0.0
        hosts = {self._cluster.host_of[rank] for rank in members}
        sent = self._send_rate(work, members) if interference.by_rate else 0.0
        return interference.pressure(Communication(len(hosts) > 1, sent, work.traffic_kind in RELAYED))

    def drag(self, op: Op) -> float:
        """Return how much longer a round of an op's communication takes while a member computes (0.1: 10 %)."""
        return (
            self._interference.communication_slowdown if self._interference and op.work.slows_compute(op.lane) else 0.0
        )

    def _send_rate(self, work: Work, members: tuple[int, ...]) -> float:
        size, alone = work.size, self.alone_seconds(work, members)
        if work.axis:
            size *= work.load * bus_factor(cast(Any, work.traffic_kind), len(members))
        return size / alone if alone > 0 else 0.0

    def alone_seconds(self, work: Work, members: tuple[int, ...]) -> float:
        """Return the seconds that a communication takes if no other traffic uses its links."""
        return sum(traffic.alone_seconds(self.capacity) for traffic in self.traffics(work, members))
