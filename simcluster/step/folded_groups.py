"""Groups and routes of a job in which one representative of each class of equivalent ranks is simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import cast

import numpy as np

from simcluster.devices.interference import Interference
from simcluster.planning.ops import Op, OpWork
from simcluster.planning.rank_grid import RankLayout
from simcluster.reference.communication import JobCommunication
from simcluster.reference.dependency_graph import OpNode
from simcluster.symmetry.folding import FoldedJob
from simcluster.topology import Cluster
from simcluster.traffic.collective_methods import MethodChooser
from simcluster.traffic.traffic import Traffic


class FoldedGroups(JobCommunication):
    """Groups and traffic of the simulated ranks, each of which represents a class of equivalent ranks."""

    def __init__(
        self,
        plan: RankLayout,
        cluster: Cluster,
        methods: MethodChooser,
        interference: Interference | None,
        folding: FoldedJob,
    ) -> None:
        super().__init__(plan, cluster, methods, interference)
        self._communicators, self._classes = folding
        self._members_of: dict[int, tuple[int, ...]] = {}  # by class of communicators

    @property
    def simulated_ranks(self) -> tuple[int, ...]:
        """Simulated ranks, one for each class of equivalent ranks."""
        return self._classes.rank_representatives

    @cached_property
    def link_capacities(self) -> list[float]:
        """Capacity (B/s) of the links in each class of equivalent links."""
        links = np.array(self._classes.link_representatives, dtype=np.int64)
        found: list[float] = self._cluster.link_capacity.values_at(links).tolist()
        return found

    def stage_of_rank(self, rank: int) -> int:
        return int(self._communicators.stage_of[rank])

    def peer_rank(self, rank: int, stage: int) -> int:
        """Return the representative of the rank with the same position in another pipeline stage."""
        return self._classes.rank_representatives[self._classes.of_rank[super().peer_rank(rank, stage)]]

    def group_members(self, node: OpNode) -> tuple[int, ...]:
        """Return the representatives of the ranks in an op's group, in order; for a send, the sender first."""
        group = node.op.work.group(node.stage)
        if not isinstance(group, str):
            return super().group_members(node)
        number = self._communicators.find_communicator(group, node.rank)
        name = self._classes.of_communicator[number]
        if name not in self._members_of:
            met = self._classes.classes_of_ranks(self._communicators.member_array(number))
            self._members_of[name] = tuple([self._classes.rank_representatives[each] for each in met])
        return self._members_of[name]

    def _communicator_number(self, work: OpWork, first: int) -> int:
        return self._communicators.find_communicator(work.group(self.stage_of_rank(first)), first)

    def _make_traffic(self, work: OpWork, members: tuple[int, ...]) -> tuple[Traffic, ...]:
        number = self._communicator_number(work, members[0])
        found = self._communicators.traffic_of_call(
            number, work.traffic_kind, work.size, self._classes.quotient[self._classes.of_communicator[number]]
        )
        return tuple(
            replace(each, round_bytes=work.load * each.round_bytes, bound=min(each.bound, work.bound)) for each in found
        )

    def slowdown_of_compute(self, op: Op, members: tuple[int, ...]) -> float:
        ranks = self._communicators.member_ranks(self._communicator_number(op.work, members[0]))
        return super().slowdown_of_compute(op, ranks)

    def uncontended_seconds(self, work: OpWork, members: tuple[int, ...]) -> float:
        if not work.traffic_kind:
            return super().uncontended_seconds(work, members)
        number, communicators = self._communicator_number(work, members[0]), self._communicators
        found = communicators.traffic_of_call(number, work.traffic_kind, work.size, communicators.link_usages(number))
        loaded = (replace(each, round_bytes=work.load * each.round_bytes) for each in found)
        rates = cast(Sequence[float], self._cluster.link_capacity.all_values)
        return float(sum(each.solo_seconds(rates) for each in loaded))
