"""Groups and routes of a job of which only one rank per class of equal ranks is simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import cast

import numpy as np

from simcluster.devices.interference import Interference
from simcluster.planning.ops import Op, Work
from simcluster.planning.parallel import RankLayout
from simcluster.reference.communication import GroupsAndRoutes
from simcluster.reference.nodes import Node
from simcluster.symmetry.folding import Folding
from simcluster.topology import Cluster
from simcluster.traffic.methods import Methods
from simcluster.traffic.traffic import Traffic


class FoldedGroups(GroupsAndRoutes):
    """Groups and traffic of representative ranks, each of which is simulated for a class of equal ranks."""

    def __init__(
        self,
        plan: RankLayout,
        cluster: Cluster,
        methods: Methods,
        interference: Interference | None,
        folding: Folding,
    ) -> None:
        super().__init__(plan, cluster, methods, interference)
        self._communicators, self._classes = folding
        self._members_of: dict[int, tuple[int, ...]] = {}  # by class of communicators

    @property
    def ranks(self) -> tuple[int, ...]:
        """Representative ranks, which are simulated."""
        return self._classes.rank_representatives

    @cached_property
    def capacity(self) -> list[float]:
        """Capacity (B/s) per class of equal links."""
        links = np.array(self._classes.link_representatives, dtype=np.int64)
        found: list[float] = self._cluster.link_capacity.of(links).tolist()
        return found

    def stage(self, rank: int) -> int:
        """Return the pipeline stage of a rank."""
        return int(self._communicators.stage_of[rank])

    def peer(self, rank: int, stage: int) -> int:
        """Return the representative of the rank at the same position in another pipeline stage."""
        return self._classes.rank_representatives[self._classes.of_rank[super().peer(rank, stage)]]

    def members(self, node: Node) -> tuple[int, ...]:
        """Return the representatives of the ranks in an op's group, in order; for a send, the sender first."""
        group = node.op.work.group(node.stage)
        if not isinstance(group, str):
            return super().members(node)
        number = self._communicators.number(group, node.rank)
        name = self._classes.of_communicator[number]
        if name not in self._members_of:
            met = self._classes.meeting(self._communicators.members(number))
            self._members_of[name] = tuple([self._classes.rank_representatives[each] for each in met])
        return self._members_of[name]

    def _communicator_number(self, work: Work, first: int) -> int:
        return self._communicators.number(work.group(self.stage(first)), first)

    def _make_traffics(self, work: Work, members: tuple[int, ...]) -> tuple[Traffic, ...]:
        number = self._communicator_number(work, members[0])
        found = self._communicators.traffics(
            number, work.traffic_kind, work.size, self._classes.quotient[self._classes.of_communicator[number]]
        )
        return tuple(
            replace(each, round_bytes=work.load * each.round_bytes, bound=min(each.bound, work.bound)) for each in found
        )

    def pressure(self, op: Op, members: tuple[int, ...]) -> float:
        """Return how much an op's communication slows concurrent compute of sensitivity 1 (0.1: 10 %)."""
        return super().pressure(op, self._communicators.ranks(self._communicator_number(op.work, members[0])))

    def alone_seconds(self, work: Work, members: tuple[int, ...]) -> float:
        """Return the seconds that a communication takes if no other traffic uses its links."""
        if not work.traffic_kind:
            return super().alone_seconds(work, members)
        number = self._communicator_number(work, members[0])
        found = self._communicators.traffics(number, work.traffic_kind, work.size, self._communicators.usages(number))
        loaded = (replace(each, round_bytes=work.load * each.round_bytes) for each in found)
        rates = cast(Sequence[float], self._cluster.link_capacity.all)
        return float(sum(each.alone_seconds(rates) for each in loaded))
