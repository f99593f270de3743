"""A lower bound by link loads: the bytes of all groups on a link, over what it carries.

Other lower bounds take every group alone, on free links (``free_links``).  But all stages gather their parameters at
the same time, once the gradient norm has been added up, and reduce their gradients at nearly the same time before it.
However groups share a link, it has not carried all that goes over it before the first of them begins and so many
seconds: the sum of all groups' bytes over what it carries.  For 175B on 1,024 A100 in a fat tree, tp 4 and pp 8, the
gather takes 0.451 s, which is what this says; alone on free links every group would take 0.231 s.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.collectives import Group
from simcluster.planning.parallel import Plan
from simcluster.planning.works import Collective, Transfer
from simcluster.studies.search.free_links import Way
from simcluster.topology import Cluster
from simcluster.traffic.methods import Methods, phases_of
from simcluster.traffic.traffic import group_of, patterns


class Begun(NamedTuple):
    """Collectives over dp that a stage's ranks do one after the other, and since when at the earliest (s)."""

    instant: float
    calls: Sequence[Collective]


Calls = Sequence[Collective]


class _Groups(NamedTuple):
    """The ranks of groups, and one of them of each form."""

    ranks: list[list[int]]
    forms: tuple[Group, ...]


class GroupLoads:
    """Bytes that collectives of the groups of a stage put on every link; what is drawn once is kept."""

    def __init__(self, plan: Plan, cluster: Cluster, methods: Methods) -> None:
        self._plan, self._cluster, self._methods = plan, cluster, methods
        self._stages = plan.stages()
        self._first: list[int] = [int(ranks[0]) for ranks in plan.stage_ranks()]
        self._groups: dict[Hashable, _Groups] = {}
        self._drawn: dict[Hashable, Floats] = {}
        self._alike: dict[Hashable, bool] = {}

    def send_alike(self, hops: Sequence[tuple[int, int]], size: float) -> bool:
        """Are sends of so many bytes between stages nowhere faster than between the stages' first ranks?  Asked of one
        rank in each of the first stage's groups over dp, and of those at its place in the other stages."""
        if (size, *hops) not in self._alike:
            here = self._plan.groups("dp")
            first = here[self._stages[here[:, 0]] == 0][:, 0]
            places = np.flatnonzero(np.isin(self._plan.stage_ranks()[0], first)).tolist()
            ways = [Way(self._plan, self._cluster, self._methods, place) for place in dict.fromkeys((0, *places))]
            sends = [(stage, Transfer(other, size)) for stage, other in hops]
            took = [[way.seconds(*send) for send in sends] for way in ways]
            self._alike[size, *hops] = all(
                own >= first for each in took for own, first in zip(each, took[0], strict=True)
            )
        return self._alike[size, *hops]

    def over(self, begun: Mapping[int, Begun], *, every: bool) -> float:
        """When all is over at the earliest; ``begun`` by stage.  Of ``every`` group of the stages, or of those alone in
        which the stage's first rank is."""
        found = -np.inf
        loads = np.zeros(len(self._cluster.capacity))
        for stage, own in sorted(begun.items(), key=lambda item: -item[1].instant):
            for call in own.calls:
                loads += call.load * call.size * self._of(stage, call, every=every)
            found = max(found, own.instant + float(loads.max(initial=0.0)))
        return found

    def _of(self, stage: int, call: Collective, *, every: bool) -> Floats:
        """Seconds that every link needs for a byte of a call of this size."""
        where = stage, every, call.axis
        if where not in self._groups:
            self._groups[where] = self._groups_of(*where)
        ranks, forms = self._groups[where]
        algorithms = tuple([self._methods.of(form, call.moves, call.size).algorithm for form in forms])
        name = where, call.moves, algorithms
        if name not in self._drawn:
            self._drawn[name] = self._draw(ranks, call)
        return self._drawn[name]

    def _groups_of(self, stage: int, every: bool, axis: str) -> _Groups:
        groups = self._plan.groups(axis)
        own = groups[self._stages[groups[:, 0]] == stage]
        if not every:
            own = own[(own == self._first[stage]).any(axis=1)]
        found: list[list[int]] = own.tolist()
        forms = {group.form: group for group in [group_of(self._cluster, ranks) for ranks in found]}
        return _Groups(found, tuple(forms.values()))

    def _draw(self, groups: Sequence[Sequence[int]], call: Collective) -> Floats:
        found = np.zeros(len(self._cluster.capacity))
        for ranks in groups:
            group = group_of(self._cluster, ranks)
            method = self._methods.of(group, call.moves, call.size)
            for part in patterns(self._cluster, ranks, phases_of(method, group, call.moves)):
                links, flows = np.array(part.usage, dtype=np.float64).reshape(-1, 2).T
                found[links.astype(np.int64)] += part.rounds * part.share * flows
        loads: Floats = found / self._cluster.capacity
        return loads


def step_end(
    loads: GroupLoads, ends: Sequence[float], calls: Sequence[tuple[Calls, Calls]],
    updates: Sequence[tuple[float, float]], *, every: bool,
) -> tuple[float, float]:  # fmt: skip
    """Seconds until the gradient norm is known, and from there to the end of the step, at the least.

    By stage: when its passes are over, what it then reduces and what it gathers behind the optimizer, and the seconds
    of its norm and of its update.  ``every``: the ends are those of some rank in every group over dp.
    """
    reduced = {stage: Begun(end, own) for stage, (end, (own, _)) in enumerate(zip(ends, calls, strict=True)) if own}
    gathered = {
        stage: Begun(update, own)
        for stage, ((_, update), (_, own)) in enumerate(zip(updates, calls, strict=True)) if own
    }  # fmt: skip
    norm = min(norm for norm, _ in updates)
    every = every and all(call.axis == "dp" for own in reduced.values() for call in own.calls)
    return max(0.0, loads.over(reduced, every=every) + norm), max(0.0, loads.over(gathered, every=True))
