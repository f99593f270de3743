"""Communication in the reference simulator: ranks, link traffic, and slowdown of concurrent compute."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, cast

from simcluster.collectives import Phase
from simcluster.collectives.token_relay import RELAYED
from simcluster.devices.interference import ConcurrentCommunication, Interference
from simcluster.planning.ops import Op, OpWork
from simcluster.planning.rank_grid import RankLayout
from simcluster.reference.dependency_graph import OpNode
from simcluster.topology import Cluster
from simcluster.traffic.collective_methods import (
    MethodChooser,
    NcclTiming,
    hop_round_timing,
    make_traffics,
    phases_of_method,
)
from simcluster.traffic.nccl.tuner_query import bus_factor
from simcluster.traffic.traffic import Traffic, host_copy_pattern, link_patterns, make_group


class RoundPlan(NamedTuple):
    """Plan of a collective that is simulated round by round: phases, bytes, and NCCL's latency and rate per hop."""

    phases: Sequence[Phase]
    size: float
    pace: NcclTiming | None


class JobCommunication:
    """Rank groups, link traffic and slowdowns of a job's communication, for the reference simulator."""

    def __init__(
        self, plan: RankLayout, cluster: Cluster, methods: MethodChooser, interference: Interference | None
    ) -> None:
        self._plan, self._cluster, self._methods, self._interference = plan, cluster, methods, interference
        self._groups: dict[str, dict[int, tuple[int, ...]]] = {}
        self._traffics: dict[Hashable, tuple[Traffic, ...]] = {}

    @cached_property
    def _stage_ranks(self) -> list[list[int]]:
        return [ranks.tolist() for ranks in self._plan.stage_ranks()]

    @cached_property
    def _stage_positions(self) -> dict[int, tuple[int, int]]:
        stages = enumerate(self._stage_ranks)
        return {rank: (stage, place) for stage, ranks in stages for place, rank in enumerate(ranks)}

    @property
    def simulated_ranks(self) -> Sequence[int]:
        """Ranks that the reference simulator simulates: all ranks of the job."""
        return range(self._plan.num_ranks)

    @cached_property
    def link_capacities(self) -> list[float]:
        """Capacity of every link (B/s)."""
        found: list[float] = self._cluster.capacity.tolist()
        return found

    def stage_of_rank(self, rank: int) -> int:
        """Return the pipeline stage of a rank."""
        return self._stage_positions[rank][0]

    def peer_rank(self, rank: int, stage: int) -> int:
        """Return the rank at the same position of another pipeline stage."""
        return self._stage_ranks[stage][self._stage_positions[rank][1]]

    def group_members(self, node: OpNode) -> tuple[int, ...]:
        """Return the simulated ranks of an op's group, in order; for a send: sender, then receiver."""
        group = node.op.work.group(node.stage)
        assert group is not None, node.op
        if not isinstance(group, str):
            if group[0] == "copy":
                return (node.rank,)
            return self.peer_rank(node.rank, group[1]), self.peer_rank(node.rank, group[2])
        if group not in self._groups:
            groups = [tuple(each.tolist()) for each in self._plan.groups(group)]
            self._groups[group] = {rank: each for each in groups for rank in each}
        return self._groups[group][node.rank]

    def traffic_of_work(self, work: OpWork, members: tuple[int, ...]) -> tuple[Traffic, ...]:
        """Return the transfers of a communication op between these ranks, in execution order."""
        if not work.traffic_kind:
            return (Traffic((), 0.0, 1, work.seconds),)
        if (work, members) not in self._traffics:
            self._traffics[work, members] = self._make_traffic(work, members)
        return self._traffics[work, members]

    def _make_traffic(self, work: OpWork, members: tuple[int, ...]) -> tuple[Traffic, ...]:
        way = work.group(0)  # a copy's is the same on all stages
        if isinstance(way, tuple) and way[0] == "copy":
            copied = host_copy_pattern(self._cluster, members[0], way[1]).make_traffic(work.size)
            return (replace(copied, bound=min(copied.bound, work.bound)),)
        group = make_group(self._cluster, members)
        method = self._methods.choose_method(group, work.traffic_kind, work.size)
        phases = phases_of_method(method, group, work.traffic_kind)
        found = make_traffics(link_patterns(self._cluster, members, phases), work.size, method)
        return tuple(replace(traffic, round_bytes=work.load * traffic.round_bytes) for traffic in found)

    def round_plan(self, work: OpWork, members: tuple[int, ...]) -> RoundPlan:
        """Return the phases, bytes and hop times of a collective that is simulated round by round."""
        group = make_group(self._cluster, members)
        method = self._methods.choose_method(group, work.traffic_kind, work.size)
        phases = phases_of_method(method, group, work.traffic_kind)
        return RoundPlan(phases, work.load * work.size, method.pace and hop_round_timing(phases, method.pace))

    def slowdown_of_compute(self, op: Op, members: tuple[int, ...]) -> float:
        """Return the fraction by which a communication op slows down concurrent compute of sensitivity 1."""
        work, interference = op.work, self._interference
        if interference is None or not work.slows_compute(op.lane):
            return 0.0
        seen = {self._cluster.host_of[rank] for rank in members}
        sent = self._send_rate(work, members) if interference.depends_on_rate else 0.0
        return interference.compute_slowdown(ConcurrentCommunication(len(seen) > 1, sent, work.traffic_kind in RELAYED))

    def slowdown_by_compute(self, op: Op) -> float:
        """Return the fraction by which a round of a communication op slows down while one of its ranks computes."""
        interference = self._interference
        return interference.communication_slowdown if interference and op.work.slows_compute(op.lane) else 0.0

    def _send_rate(self, work: OpWork, members: tuple[int, ...]) -> float:
        size, alone = work.size, self.uncontended_seconds(work, members)
        if work.axis:
            size *= work.load * bus_factor(cast(Any, work.traffic_kind), len(members))
        return size / alone if alone > 0 else 0.0

    def uncontended_seconds(self, work: OpWork, members: tuple[int, ...]) -> float:
        """Return the time (s) of a communication op on links without other traffic."""
        return sum(traffic.solo_seconds(self.link_capacities) for traffic in self.traffic_of_work(work, members))
