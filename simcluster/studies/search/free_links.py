"""Lower bounds of communication times: each call alone on free links.

The engine never simulates a collective or a transfer faster: its rates are max-min fair shares of link capacities, at
most those of the collective alone, and groups that share links or wait for each other only take longer.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from simcluster.planning.ops import MAIN, Item, Op, Segment, StageProgram
from simcluster.planning.parallel import Plan
from simcluster.planning.works import Collective, Transfer
from simcluster.symmetry.communicators import Communicators
from simcluster.topology import Cluster
from simcluster.traffic.fairness import Usage, solo_rate
from simcluster.traffic.methods import Methods, make_activities, phases_of
from simcluster.traffic.traffic import Pattern, Traffic, group_of, patterns

Call = Collective | Transfer
PatternCache = dict[Hashable, tuple[Pattern, ...]]
"""Patterns of groups and pairs of one cluster on its links, by their ranks and what they do."""


def least_seconds(
    calls: Sequence[Sequence[Call]], plan: Plan, cluster: Cluster, methods: Methods
) -> list[dict[Call, float]]:
    """Return the least time (s) of each stage's calls (``calls[stage]``), in the fastest group or pair of its ranks."""
    programs = []
    for stage, wanted in enumerate(calls):
        ops = [Op(call, call.axis or "pp", "call", "call") for call in dict.fromkeys(wanted)]
        programs.append(StageProgram(stage, {MAIN: [Item(Segment((op,)), place) for place, op in enumerate(ops)]}))
    communicators = Communicators(programs, plan, cluster, methods)
    alone = _ActivitiesAlone(communicators, cluster.capacity.tolist())
    found = []
    for stage, (wanted, ranks) in enumerate(zip(calls, plan.stage_ranks(), strict=True)):
        by_kind: dict[object, list[Call]] = {}
        for call in dict.fromkeys(wanted):
            by_kind.setdefault(call.group(stage), []).append(call)
        least: dict[Call, float] = {}
        for kind, those in by_kind.items():
            numbers = dict.fromkeys(communicators.number(kind, rank) for rank in ranks.tolist())
            unequal = {alone.signature(number, those): number for number in numbers}
            for call in those:
                least[call] = min(
                    _duration(alone.traffics(number, call), alone.capacity) for number in unequal.values()
                )
        found.append(least)
    return found


class FirstRankRoutes:
    """First rank of each stage, with the groups and pairs in which these ranks communicate, and their routes.

    The ops of these ranks in a run are a chain: a lower bound of this chain is one of the step. ``drawn`` is shared by
    layouts on the same cluster: all 1,024 ranks, of which every layout needs its norm, take 0.7 s to route.
    """

    def __init__(self, plan: Plan, cluster: Cluster, methods: Methods, drawn: PatternCache) -> None:
        self._plan, self._cluster, self._methods, self._drawn = plan, cluster, methods, drawn
        self._capacity = cluster.capacity.tolist()
        self._ranks = [int(ranks[0]) for ranks in plan.stage_ranks()]
        self._groups: dict[tuple[str, int], tuple[int, ...]] = {}

    def seconds(self, stage: int, call: Call) -> float:
        """Return the least time (s) of a stage's send or collective."""
        kind, ranks = call.traffic_kind, self._ranks_of_call(call, stage)
        group = group_of(self._cluster, ranks)
        method = self._methods.of(group, kind, call.size)
        name = ranks, kind, method.algorithm, method.routes
        if name not in self._drawn:
            self._drawn[name] = patterns(self._cluster, ranks, phases_of(method, group, kind))
        return _duration(make_activities(self._drawn[name], call.size, method), self._capacity)

    def _ranks_of_call(self, call: Call, stage: int) -> tuple[int, ...]:
        """Return the ranks of a call's group or pair."""
        if isinstance(call, Transfer):
            return self._ranks[stage], self._ranks[call.to_stage]
        name = call.axis, stage
        if name not in self._groups:
            groups = self._plan.groups(call.axis)
            here = (groups == self._ranks[stage]).any(axis=1)
            self._groups[name] = tuple(groups[here][0].tolist())
        return self._groups[name]


class LeastCallTimes(dict[Call, float]):
    """Least times (s) of one stage's dp calls and sends, computed on first use."""

    def __init__(self, way: FirstRankRoutes, stage: int) -> None:
        super().__init__()
        self._way, self._stage = way, stage

    def __missing__(self, call: Call) -> float:
        self[call] = self._way.seconds(self._stage, call)
        return self[call]


def _duration(traffics: Sequence[Traffic], capacity: Sequence[float]) -> float:
    return sum(
        each.alone_seconds(capacity) if each.round_bytes and each.usage else each.latency_seconds for each in traffics
    )


class _ActivitiesAlone:
    """Network activities of groups and pairs, each timed alone."""

    def __init__(self, communicators: Communicators, capacity: Sequence[float]) -> None:
        self._communicators, self.capacity = communicators, capacity
        self._usages: dict[int, Sequence[Usage]] = {}

    def signature(self, number: int, calls: Sequence[Call]) -> Hashable:
        """Return a key that is equal for groups in which all these calls take equally long alone.

        Their methods, rates and latencies are equal, which do not depend on sizes.
        """
        found: list[Hashable] = []
        known: set[Hashable] = set()
        for call in calls:
            method = self._communicators.method(number, call.traffic_kind, call.size) if call.axis else None
            name = (call.traffic_kind, method.algorithm) if method else "send"
            found.append(method)
            if name not in known:
                known.add(name)
                found += [
                    (each.rounds, each.round_bytes, each.latency, solo_rate(each.usage, self.capacity))
                    for each in self.traffics(number, call)
                ]
        return tuple(found)

    def traffics(self, number: int, call: Call) -> Sequence[Traffic]:
        """Return the activities of a call of a group or pair."""
        if number not in self._usages:
            self._usages[number] = self._communicators.usages(number)
        return self._communicators.traffics(number, call.traffic_kind, call.size, self._usages[number])
