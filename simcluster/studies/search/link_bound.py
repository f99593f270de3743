"""The tightest bound: replicas' gradients and parameters need the links that their groups share.

Where the sums over dp block, those of all groups begin when their stages are through with their passes, and the norm
waits for all of them.  Whatever rates the network gives them, a link carries no more than it can: of the groups that
begin at a time or later all bytes that cross a link are still to come then.  So with the gathers behind the optimizer.
Hashed routes, which put several groups on one link, are seen here and by no other bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.planning.parallel import Plan
from simcluster.planning.works import Collective, Transfer
from simcluster.scenario.scenario import Scenario
from simcluster.schedules import SCHEDULES
from simcluster.studies.search.bound import ROUNDING, Bounds
from simcluster.studies.search.free_links import Call, least_seconds
from simcluster.studies.search.outlines import Stage, grid_of
from simcluster.studies.search.space import Layout
from simcluster.traffic.methods import activities, phases_of
from simcluster.traffic.traffic import group_of, patterns


class LinkBounds(Bounds):
    """``Bounds`` with a fourth step, dearer than the third."""

    def __init__(self, base: Scenario, layouts: Sequence[Layout]) -> None:
        """``layouts`` are all that will be asked for."""
        super().__init__(base, layouts)
        self._anywhere: dict[object, list[dict[Call, float]]] = {}
        self._loads: dict[object, Floats] = {}

    def with_links(self, layout: Layout) -> float:
        """With what the links must carry of all groups over dp together."""
        known, stages = self.with_schedule(layout), self._outlined(layout)
        if stages is None or SCHEDULES[layout.schedule].made_for_times or layout.dp == 1 or layout.zero > 1:
            return known  # ZeRO 2 and 3 send all the time
        calls = [self._dp_calls(layout, stage) for stage in stages]
        if not any(call for each in calls for call in each):
            return known
        times = self.times(layout)
        shared = self._replicas(layout) if layout.zero else 1
        own = [self._update(times, self._parameters(layout, stage) / shared) for stage in stages]
        norms, updates = [norm for norm, _ in own], [update for _, update in own]
        ends = self._schedule_ends(layout, times, self._fastest(layout), "fastest")
        reduced = self._carried(layout, [call for call, _ in calls], ends) + min(norms)
        gathered = self._carried(layout, [call for _, call in calls], updates)
        before, done = self._apart(layout, stages, ends, norms, updates)
        return max(known, (1 - ROUNDING) * (max(before, reduced) + max(done, gathered)))

    def _apart(
        self, layout: Layout, stages: Sequence[Stage], ends: Sequence[float], norms: Sequence[float],
        updates: Sequence[float],
    ) -> tuple[float, float]:  # fmt: skip
        """Without that: when all norms are there at the least, and what is behind them."""
        tails = self._tails(layout, stages, self._least(layout))
        own = self._schedule_ends(layout, self.times(layout), self._least(layout))
        before = max(end + held + norm for end, (held, _), norm in zip(own, tails, norms, strict=True))
        done = max(update + held for update, (_, held) in zip(updates, tails, strict=True))
        return max(before, max(end + norm for end, norm in zip(ends, norms, strict=True))), done

    def _fastest(self, layout: Layout) -> Sequence[Mapping[Call, float]]:
        """Least seconds of every stage's sends, at the place where they are fastest."""
        pipeline, size = self.pipeline(layout), self.times(layout).send_bytes
        assert pipeline is not None
        name = grid_of(layout), layout.schedule, layout.chunks, size
        if name not in self._anywhere:
            sends: list[list[Call]] = [[] for _ in range(layout.pp)]
            for (here, _), (there, _) in pairwise(pipeline.route):
                if here != there:
                    sends[here].append(Transfer(there, size))
                    sends[there].append(Transfer(here, size))
            plan = Plan(tp=layout.tp, pp=layout.pp, dp=layout.dp, order=layout.order)
            self._anywhere[name] = least_seconds(sends, plan, self.base.cluster.built, self._methods)
        return self._anywhere[name]

    def _carried(self, layout: Layout, calls: Sequence[Collective | None], begins: Sequence[float]) -> float:
        """When the links can have carried these calls of all stages' groups, which begin at these times or later."""
        if not any(calls):
            return 0.0
        name = grid_of(layout), tuple(calls)
        if name not in self._loads:
            self._loads[name] = self._seconds_on_links(layout, calls)
        loads, last = self._loads[name], 0.0
        latest = sorted(range(len(begins)), key=lambda stage: -begins[stage])
        for count, stage in enumerate(latest, 1):  # those that begin no earlier than this one
            last = max(last, begins[stage] + float(loads[latest[:count]].sum(axis=0).max(initial=0.0)))
        return last

    def _seconds_on_links(self, layout: Layout, calls: Sequence[Collective | None]) -> Floats:
        """For how long each link is full with a stage's groups [stage, link]."""
        cluster = self.base.cluster.built
        found = np.zeros((layout.pp, len(cluster.capacity)))
        plan = Plan(tp=layout.tp, pp=layout.pp, dp=layout.dp, order=layout.order)
        stage_of = plan.stages()
        for group in plan.groups("dp"):
            stage = int(stage_of[group[0]])
            call = calls[stage]
            if call is None:
                continue
            ranks = tuple(group.tolist())
            there = group_of(cluster, ranks)
            method = self._methods.of(there, call.kind, call.size)
            drawn = patterns(cluster, ranks, phases_of(method, there, call.kind))
            for traffic in activities(drawn, call.size, method):
                links, flows = np.array(traffic.usage).reshape(-1, 2).T
                found[stage, links.astype(np.int64)] += flows * (traffic.rounds * traffic.round_bytes)
        used = found.any(axis=0)
        return found[:, used] / cluster.capacity[used]
