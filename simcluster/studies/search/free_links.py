"""What communication takes at least: alone, on free links.

The engine never plays a collective or a transfer faster: its rates are max-min fair shares of what links carry, at most
what they would be alone, and groups that share links or wait for each other only take longer.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from simcluster.planning.ops import MAIN, Item, Op, Segment, StageProgram
from simcluster.planning.parallel import Plan
from simcluster.planning.works import Collective, Transfer
from simcluster.symmetry.communicators import Communicators
from simcluster.topology import Cluster
from simcluster.traffic.fairness import Usage, solo_rate
from simcluster.traffic.methods import Methods, activities, phases_of
from simcluster.traffic.traffic import Pattern, Traffic, group_of, patterns

Call = Collective | Transfer
Drawn = dict[Hashable, tuple[Pattern, ...]]
"""What groups and pairs of one cluster put on its links, by their ranks and what they do."""


def least_seconds(
    calls: Sequence[Sequence[Call]], plan: Plan, cluster: Cluster, methods: Methods
) -> list[dict[Call, float]]:
    """Seconds of the calls of each stage's ranks (``calls[stage]``), in the fastest group or pair of the stage."""
    programs = []
    for stage, wanted in enumerate(calls):
        items = []
        for number, call in enumerate(dict.fromkeys(wanted)):
            op = Op(call, call.axis or "pp", "call", "call")
            items.append(Item(Segment((op,)), number))
        programs.append(StageProgram(stage, {MAIN: items}))
    communicators = Communicators(programs, plan, cluster, methods)
    alone = _Alone(communicators, cluster.capacity.tolist())
    found = []
    for stage, (wanted, ranks) in enumerate(zip(calls, plan.stage_ranks(), strict=True)):
        by_kind: dict[object, list[Call]] = {}
        for call in dict.fromkeys(wanted):
            by_kind.setdefault(call.group(stage), []).append(call)
        least: dict[Call, float] = {}
        for kind, those in by_kind.items():
            numbers = dict.fromkeys(communicators.number(kind, rank) for rank in ranks.tolist())
            unlike = {alone.signature(number, those): number for number in numbers}
            for call in those:
                least[call] = min(alone.seconds(number, call) for number in unlike.values())
        found.append(least)
    return found


class Way:
    """The first rank of every stage, with the groups and pairs that these ranks are in.

    A run's ops of these ranks are a chain of their own: whatever holds for these holds for the step.  ``drawn`` is
    shared by ways on the same cluster: all 1,024 ranks, of which every layout asks for its norm, take 0.7 s to draw.
    """

    def __init__(self, plan: Plan, cluster: Cluster, methods: Methods, drawn: Drawn) -> None:
        self._cluster, self._methods = cluster, methods
        self._capacity = cluster.capacity.tolist()
        self._ranks = [int(ranks[0]) for ranks in plan.stage_ranks()]
        self._plan = plan
        self._groups: dict[tuple[str, int], tuple[int, ...]] = {}
        self._drawn = drawn

    def seconds(self, stage: int, call: Call) -> float:
        """What a send or a collective takes at the least on a stage."""
        kind, ranks = call.moves, self._members(call, stage)
        group = group_of(self._cluster, ranks)
        method = self._methods.of(group, kind, call.size)
        name = ranks, kind, method.algorithm, method.routes
        if name not in self._drawn:
            self._drawn[name] = patterns(self._cluster, ranks, phases_of(method, group, kind))
        return _alone(activities(self._drawn[name], call.size, method), self._capacity)

    def _members(self, call: Call, stage: int) -> tuple[int, ...]:
        """The group or pair of the stage's rank."""
        if isinstance(call, Transfer):
            return self._ranks[stage], self._ranks[call.to_stage]
        axis = call.axis
        if (axis, stage) not in self._groups:
            groups = self._plan.groups(axis)
            here = (groups == self._ranks[stage]).any(axis=1)
            self._groups[axis, stage] = tuple(groups[here][0].tolist())
        return self._groups[axis, stage]


class Least(dict[Call, float]):
    """Least seconds of a stage's calls over dp and of its sends, worked out when they are asked for."""

    def __init__(self, way: Way, stage: int) -> None:
        super().__init__()
        self._way, self._stage = way, stage

    def __missing__(self, call: Call) -> float:
        self[call] = self._way.seconds(self._stage, call)
        return self[call]


def _alone(traffics: Sequence[Traffic], capacity: Sequence[float]) -> float:
    return sum(
        each.alone_seconds(capacity) if each.round_bytes and each.usage else each.latency_seconds for each in traffics
    )


class _Alone:
    """What groups and pairs take by themselves."""

    def __init__(self, communicators: Communicators, capacity: Sequence[float]) -> None:
        self._communicators, self._capacity = communicators, capacity
        self._usages: dict[int, Sequence[Usage]] = {}

    def seconds(self, number: int, call: Call) -> float:
        """Of a call of one of them."""
        return _alone(self._traffics(number, call), self._capacity)

    def signature(self, number: int, calls: Sequence[Call]) -> Hashable:
        """Equal for those that take as long for all these calls: done by the same methods, at the same rates and
        latencies, which do not depend on sizes."""
        found: list[Hashable] = []
        known: dict[Hashable, None] = {}
        for call in calls:
            method = self._communicators.method(number, call.moves, call.size) if call.axis else None
            name = (call.moves, method.algorithm) if method else "send"
            found.append(method)
            if name not in known:
                known[name] = None
                parts = self._traffics(number, call)
                found += [
                    (each.rounds, each.round_bytes, each.latency, solo_rate(each.usage, self._capacity))
                    for each in parts
                ]
        return tuple(found)

    def _traffics(self, number: int, call: Call) -> Sequence[Traffic]:
        if number not in self._usages:
            self._usages[number] = self._communicators.usages(number)
        return self._communicators.traffics(number, call.moves, call.size, self._usages[number])
