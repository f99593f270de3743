"""Lower bounds of communication times: each collective or send timed alone on uncontended links.

The engine never simulates a collective or a transfer faster: its rates are max-min fair shares of link capacities, at
most those of the collective alone, and groups that share links or wait for each other only take longer.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from simcluster.planning.ops import MAIN, Op, Segment, StageProgram, WorkItem
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.planning.work_kinds import Collective, StageSend
from simcluster.symmetry.communicators import Communicators
from simcluster.topology import Cluster
from simcluster.traffic.collective_methods import MethodChooser, make_traffics, phases_of_method
from simcluster.traffic.fairness import Usage, solo_rate
from simcluster.traffic.traffic import LinkPattern, Traffic, link_patterns, make_group

Call = Collective | StageSend
PatternCache = dict[Hashable, tuple[LinkPattern, ...]]
"""Link usage patterns of a cluster's groups and pairs of ranks, by their ranks and communication."""


def least_call_seconds(
    calls: Sequence[Sequence[Call]], plan: ParallelPlan, cluster: Cluster, methods: MethodChooser
) -> list[dict[Call, float]]:
    """Return, for each stage, the least time (s) of each collective and send, in its fastest group or pair of ranks."""
    programs = []
    for stage, wanted in enumerate(calls):
        ops = [Op(call, call.axis or "pp", "call", "call") for call in dict.fromkeys(wanted)]
        programs.append(StageProgram(stage, {MAIN: [WorkItem(Segment((op,)), place) for place, op in enumerate(ops)]}))
    communicators = Communicators(programs, plan, cluster, methods)
    alone = _UncontendedActivities(communicators, cluster.capacity.tolist())
    found = []
    for stage, (wanted, ranks) in enumerate(zip(calls, plan.stage_ranks(), strict=True)):
        by_kind: dict[object, list[Call]] = {}
        for call in dict.fromkeys(wanted):
            by_kind.setdefault(call.group(stage), []).append(call)
        least: dict[Call, float] = {}
        for kind, those in by_kind.items():
            numbers = dict.fromkeys(communicators.find_communicator(kind, rank) for rank in ranks.tolist())
            unequal = {alone.timing_key(number, those): number for number in numbers}
            for call in those:
                least[call] = min(
                    _uncontended_seconds(alone.call_activities(each, call), alone.capacity) for each in unequal.values()
                )
        found.append(least)
    return found


class FirstRankRoutes:
    """Routes of the collectives and sends of each stage's first rank, from which their least times follow.

    The ops of these ranks in a run are a chain: a lower bound of this chain is one of the step. ``drawn`` is shared by
    layouts on the same cluster: all 1,024 ranks, of which every layout needs its norm, take 0.7 s to route.
    """

    def __init__(self, plan: ParallelPlan, cluster: Cluster, methods: MethodChooser, drawn: PatternCache) -> None:
        self._plan, self._cluster, self._methods, self._drawn = plan, cluster, methods, drawn
        self._capacity = cluster.capacity.tolist()
        self._ranks = [int(ranks[0]) for ranks in plan.stage_ranks()]
        self._groups: dict[tuple[str, int], tuple[int, ...]] = {}

    def least_call_seconds(self, stage: int, call: Call) -> float:
        """Return the least time (s) of a send or collective of a stage's first rank."""
        kind, ranks = call.traffic_kind, self._ranks_of_call(call, stage)
        group = make_group(self._cluster, ranks)
        method = self._methods.choose_method(group, kind, call.size)
        name = ranks, kind, method.algorithm, method.routes
        if name not in self._drawn:
            self._drawn[name] = link_patterns(self._cluster, ranks, phases_of_method(method, group, kind))
        return _uncontended_seconds(make_traffics(self._drawn[name], call.size, method), self._capacity)

    def _ranks_of_call(self, call: Call, stage: int) -> tuple[int, ...]:
        if isinstance(call, StageSend):
            return self._ranks[stage], self._ranks[call.to_stage]
        name = call.axis, stage
        if name not in self._groups:
            groups = self._plan.groups(call.axis)
            here = (groups == self._ranks[stage]).any(axis=1)
            self._groups[name] = tuple(groups[here][0].tolist())
        return self._groups[name]


class LeastCallTimes(dict[Call, float]):
    """Least times (s) of one stage's dp collectives and sends; each time is computed when first requested."""

    def __init__(self, routes: FirstRankRoutes, stage: int) -> None:
        super().__init__()
        self._way, self._stage = routes, stage

    def __missing__(self, call: Call) -> float:
        self[call] = self._way.least_call_seconds(self._stage, call)
        return self[call]


def _uncontended_seconds(traffics: Sequence[Traffic], capacity: Sequence[float]) -> float:
    return sum(
        each.solo_seconds(capacity) if each.round_bytes and each.usage else each.latency_seconds for each in traffics
    )


class _UncontendedActivities:
    """Network activities of groups and pairs of ranks, each timed without contention from the others."""

    def __init__(self, communicators: Communicators, capacity: Sequence[float]) -> None:
        self._communicators, self.capacity = communicators, capacity
        self._usages: dict[int, Sequence[Usage]] = {}

    def timing_key(self, number: int, calls: Sequence[Call]) -> Hashable:
        """Return a key; groups with equal keys take equal times for each of these calls on idle links.

        Their methods, rates and latencies are equal, which do not depend on sizes.
        """
        found: list[Hashable] = []
        known: set[Hashable] = set()
        for call in calls:
            method = self._communicators.method_of_call(number, call.traffic_kind, call.size) if call.axis else None
            name = (call.traffic_kind, method.algorithm) if method else "send"
            found.append(method)
            if name not in known:
                known.add(name)
                found += [
                    (each.rounds, each.round_bytes, each.latency, solo_rate(each.usage, self.capacity))
                    for each in self.call_activities(number, call)
                ]
        return tuple(found)

    def call_activities(self, number: int, call: Call) -> Sequence[Traffic]:
        """Return the network activities of a collective of a group, or of a send of a pair."""
        if number not in self._usages:
            self._usages[number] = self._communicators.link_usages(number)
        return self._communicators.traffic_of_call(number, call.traffic_kind, call.size, self._usages[number])
