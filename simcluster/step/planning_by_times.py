"""Times of parts of a step, simulated alone on the run's own cluster, for cuts and schedules made for times.

Automatic cuts of the model and schedules made for times need to know what a layer or a pass takes before the step is
planned.  Every rank of every stage runs the parts one after the other, so collectives over tp take what they take
when all groups run them, on links that nothing else uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simcluster.base.clock import on_fitting_grid
from simcluster.engine.job_record import simulate_job
from simcluster.engine.tabulate import tabulate
from simcluster.planning.job import Job, Slices, balanced
from simcluster.planning.ops import MAIN, Item, Need, Op, Segment, StageProgram
from simcluster.planning.segments import Pass
from simcluster.planning.works import Transfer
from simcluster.reference.record import Record
from simcluster.schedules.actions import Kind
from simcluster.schedules.zb_auto import Times
from simcluster.symmetry.folding import Symmetry
from simcluster.topology import Cluster
from simcluster.traffic.methods import Methods


@dataclass(frozen=True, slots=True)
class OwnTimes:
    """What passes and sends of a job take on its cluster, without faults."""

    job: Job
    cluster: Cluster
    methods: Methods

    def cut(self) -> Slices:
        """The layers cut so that the slowest slice's F and B are as short as they can be."""
        model, schedule, passes = self.job.model, self.job.schedule, self.job.passes
        sorts = {model.has_experts(layer): layer for layer in range(model.layers)}
        parts = (Pass((), embedding=True), Pass((), lm_head=True), *(Pass((layer,)) for layer in sorts.values()))
        segments = [make(part) for part in parts for make in (passes.forward, passes.backward)]
        longest = [max(times) for times in zip(*self._part_seconds([segments] * self.job.plan.pp), strict=True)]
        first, last, *layers = (sum(longest[place : place + 2]) for place in range(0, len(longest), 2))
        seconds = dict(zip(sorts, layers, strict=True))
        each = [seconds[model.has_experts(layer)] for layer in range(model.layers)]
        return balanced(each, first, last, len(schedule.routes[0]),
                        empty_ends=schedule.may_have_empty_ends)  # fmt: skip

    def of_schedule(self) -> tuple[Times, float]:
        """F, I and W of each stage's first chunk, and the slowest send to the next stage."""
        job, passes = self.job, self.job.passes
        makers = {"F": passes.forward, "I": passes.input_grad, "W": passes.weight_grad}
        parts = [
            replace(job.whole(stage, 0), boundary=job.gather_boundary and stage > 0) for stage in range(job.plan.pp)
        ]
        times_of = self._part_seconds([[make(part) for make in makers.values()] for part in parts])
        seconds = {(kind, stage): time for stage, times in enumerate(times_of)
                   for kind, time in zip(makers, times, strict=True)}  # fmt: skip

        def costs(kind: Kind, stage: int, chunk: int) -> float:
            return seconds[kind, stage]

        return costs, self._longest_send()

    def _longest_send(self) -> float:
        """The longest time from one stage to the next, one boundary after the other."""
        programs, pp = [], self.job.plan.pp
        for stage in range(pp):
            items = []
            if stage < pp - 1:
                send = Segment((Op(Transfer(stage + 1, self.job.send_bytes), "pp", "send", "activation"),))
                needs = (Need(stage - 1, ("send", stage - 1)),) if stage else ()
                items.append(Item(send, ("send", stage), needs, microbatch=0))
            programs.append(StageProgram(stage, {MAIN: items}))
        return max((time for times in self._seconds(programs) for time in times), default=0.0)

    def _part_seconds(self, segments: Sequence[Sequence[Segment]]) -> list[list[float]]:
        """Seconds of the segments of each stage, one after the other."""
        programs = []
        for stage, mine in enumerate(segments):
            items = [Item(segment, number, microbatch=number) for number, segment in enumerate(mine)]
            programs.append(StageProgram(stage, {MAIN: items}))
        return self._seconds(programs)

    def _seconds(self, programs: Sequence[StageProgram]) -> list[list[float]]:
        """Return how long each item takes on its stage's slowest rank; items are known by their microbatch."""
        plan, cluster = self.job.plan, self.cluster
        capacity, slowness = cluster.link_capacity, [1.0] * plan.num_ranks
        folding = Symmetry(programs, plan, cluster, self.methods).folding(capacity, slowness)

        def simulated() -> Record:
            return simulate_job(tabulate(programs, plan, cluster, capacity, folding, slowness=slowness))

        record = on_fitting_grid(simulated)
        ops, times = record.ops, record.times
        items = np.stack([ops.lane_stage[ops.lane], ops.microbatch, ops.lane_rank[ops.lane]])
        (stages, numbers, _), which = np.unique(items, axis=1, return_inverse=True)
        begin, end = np.full(len(stages), np.inf), np.zeros(len(stages))
        np.minimum.at(begin, which.ravel(), times.start)
        np.maximum.at(end, which.ravel(), times.end)
        found: list[list[float]] = [[0.0] * len(program.lanes[MAIN]) for program in programs]
        for stage, number, seconds in zip(stages.tolist(), numbers.tolist(), (end - begin).tolist(), strict=True):
            found[stage][number] = max(found[stage][number], seconds)
        return found
