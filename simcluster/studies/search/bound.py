"""A lower bound of a layout's step time, in three steps from cheap to tight; none exceeds the simulated time.

Why.  The engine plays each lane of a rank in order, an op begins when those it waits for are over, and takes at least
its planned time: compute is only slowed down (interference, drag; by how much at the least: ``stretches``),
communication takes at least what it takes alone on free links in the fastest group (``free_links``).  So by induction
over the ops in the order of their ends, everything in a run ends no earlier than in the longest path through a part of
the same ops and waits, each at its least time.

* ``outline``: on a stage, the first forward comes after one microbatch's forwards of the slices before its first (the
  fill); then it does all its passes; then those slices' backwards are to come (the drain; not where a schedule splits
  the backward).  What passes say over cp and ep is left out.  Gradient norm and optimizer follow; the slowest stage
  counts: the norm waits for all.  A stage does not wait for the drain, which ends on the first stage.
* ``with_ends``: adds what holds up a stage's main lane besides: sends, the reduction behind the pipeline and the gather
  behind the optimizer, where the scenario does not overlap them; under ZeRO 2 and 3 what each microbatch sends over dp.
* ``with_schedule``: the schedule played with these times (``schedules.timing``), instead of fill and drain; what goes
  over dp by its turns.

Float sums in another order and the engine's grid, differ by less than ``ROUNDING`` takes off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from simcluster.planning.works import Transfer
from simcluster.scenario.job import methods_of
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.schedule_plan import schedule_of
from simcluster.schedules import SCHEDULES, Schedule, play
from simcluster.schedules.actions import Kind
from simcluster.studies.search.free_links import Call, Drawn, Least, Way
from simcluster.studies.search.over_dp import over_dp
from simcluster.studies.search.pass_times import (
    LayerShape,
    LeastPassTimes,
    PassParts,
    grid_of,
    is_spread,
    least_over_tp,
    least_pressures,
    near_of,
    parts_of,
    plan_of_layout,
    shape_of_layout,
    slice_times,
    stages_of,
    times_of,
    tp_groups,
)
from simcluster.studies.search.pipelines import PipelineRoute, Stage, Turns, pipeline_of, turns_of
from simcluster.studies.search.space import Layout
from simcluster.studies.search.stage_calls import StageCalls

ROUNDING = 1e-6
Known = TypeVar("Known")


class Bounds:
    """Lower bounds of the layouts of one scenario; what layouts have in common is worked out once."""

    def __init__(self, base: Scenario, layouts: Sequence[Layout]) -> None:
        """``layouts`` are all that will be asked for."""
        self.base = base
        self._methods = methods_of(base)
        self._known: dict[object, Any] = {}
        self._drawn: Drawn = {}
        self._alike: dict[object, dict[LayerShape, Layout]] = {}  # layouts of all shapes that share tp groups
        for layout in layouts:
            self._alike.setdefault(near_of(layout), {}).setdefault(shape_of_layout(layout), layout)

    def _once(self, name: object, make: Callable[[], Known]) -> Known:
        """What is known under this name, worked out when it is first asked for."""
        if name not in self._known:
            self._known[name] = make()
        found: Known = self._known[name]
        return found

    # --- the four steps -----------------------------------------------------------------------------------------------

    def outline(self, layout: Layout) -> float:
        """Passes, fill and drain, norm and optimizer."""
        times = self._near_times(layout)
        stages = self._outlined(layout, times)
        if stages is None:
            return (1 - ROUNDING) * self._mean(layout, times)
        slowest: dict[tuple[object, ...], Stage] = {}  # of stages that hold as much
        for stage in stages:
            held = stage[3:]
            if held not in slowest or stage.end > slowest[held].end:
                slowest[held] = stage
        few = list(slowest.values())
        drained = max(stage.end + stage.drain for stage in stages)
        return self._with_optimizer(layout, few, [stage.end for stage in few], [(0.0, 0.0)] * len(few), drained)

    def with_ends(self, layout: Layout) -> float:
        """With what blocks at the ends, and sends."""
        times = self.times(layout)
        stages = self._outlined(layout, times)
        if stages is None:
            return self.outline(layout)
        least = self._least(layout)
        beside, many = self._over_dp(layout, least), self.microbatches(layout)
        sent = self._sent(layout, least) if self._sends_block else [0.0] * layout.pp
        known = zip(stages, sent, beside, strict=True)
        passed = [stage.end + many * sending + held_up for stage, sending, (held_up, _) in known]
        ends = [max(end, lane) for end, (_, lane) in zip(passed, beside, strict=True)]
        drained = max(end + stage.drain for stage, end in zip(stages, passed, strict=True))
        return self._with_optimizer(layout, stages, ends, self._tails(layout, stages, least), drained)

    def with_schedule(self, layout: Layout) -> float:
        """With the schedule played; InputError if it cannot be."""
        played = self._once(("played", layout), lambda: self._played(layout))
        if played is None:
            return self.with_ends(layout)
        stages, ends = played
        found = self._with_optimizer(layout, stages, ends, self._tails(layout, stages, self._least(layout)))
        return max(found, self.with_ends(layout))

    # --- what it is made of -------------------------------------------------------------------------------------------

    def times(self, layout: Layout) -> LeastPassTimes:
        """Least times of the layout's passes, with all that they talk over tp, cp and ep."""
        if not is_spread(layout):
            return self._near_times(layout)
        return self._once(("times", grid_of(layout), shape_of_layout(layout)), lambda: self._times_of(layout))

    def _near_times(self, layout: Layout) -> LeastPassTimes:
        """The same without what they talk over cp and ep, which many layouts share."""
        found = self._once(("times", near_of(layout)), lambda: self._near_of(layout))
        return found[shape_of_layout(layout)]

    def _near_of(self, layout: Layout) -> dict[LayerShape, LeastPassTimes]:
        """Of all shapes at once: how long calls take is asked of groups, for many calls together."""
        parts = {shape: self._parts(each) for shape, each in self._alike[near_of(layout)].items()}
        calls = [call for each in parts.values() for call in each.calls]
        least = dict.fromkeys(calls, 0.0) | dict(least_over_tp(self.base, layout, calls))
        pressure = least_pressures(self.base, tp_groups(layout)) | dict.fromkeys(("cp", "ep"), 0.0)
        return {shape: times_of(self.base, each, least, pressure) for shape, each in parts.items()}

    def _times_of(self, layout: Layout) -> LeastPassTimes:
        parts, of_stages = self._parts(layout), self._least(layout)
        least = {call: min(least[call] for least in of_stages) for call in parts.calls}
        plan = self.calls(layout).plan
        pressures = self._once(("pressures", grid_of(layout)), lambda: least_pressures(self.base, plan))
        return times_of(self.base, parts, least, pressures)

    def _parts(self, layout: Layout) -> PassParts:
        name = "parts", layout.gpus, layout.tp, shape_of_layout(layout)
        return self._once(name, lambda: parts_of(self.base, layout))

    def pipeline(self, layout: Layout) -> PipelineRoute | None:
        """How the model lies on the stages, where the schedule's name tells."""
        name = layout.schedule, layout.pp, layout.chunks
        return self._once(("pipeline", *name), lambda: pipeline_of(self.base, *name))

    def microbatches(self, layout: Layout) -> int:
        """Of each replica."""
        return self.base.training.global_batch // (layout.dp * layout.micro_batch)

    @property
    def _sends_block(self) -> bool:
        return not self.base.overlap.pipeline and self.base.pipeline.p2p == "async"

    def _outlined(self, layout: Layout, times: LeastPassTimes) -> list[Stage] | None:
        """The stages, None where the cut or the way through them is not known by the name of the schedule."""
        pipeline, many = self.pipeline(layout), self.microbatches(layout)
        if pipeline is None:
            return None
        name = "stages", id(times), layout.pp, layout.dp, layout.schedule, layout.chunks
        split = SCHEDULES[layout.schedule].splits_backward
        return self._once(name, lambda: stages_of(pipeline, times, many, split=split))

    def _mean(self, layout: Layout, times: LeastPassTimes) -> float:
        """Some stage does at least the mean of all stages' work."""
        whole = times.of(range(self.base.model.layers), embedding=True, lm_head=True)
        each = whole["F"] + min(whole["B"], whole["I"] + whole["W"])
        return self.microbatches(layout) * each / layout.pp

    def calls(self, layout: Layout) -> StageCalls:
        """What its stages' ranks hold, reduce and gather."""
        return self._once(("calls", grid_of(layout), layout.zero), lambda: StageCalls(self.base, layout))

    def _with_optimizer(
        self,
        layout: Layout,
        stages: Sequence[Stage],
        ends: Sequence[float],
        tails: Sequence[tuple[float, float]],
        drained: float = 0.0,
    ) -> float:
        """Return the step time of stages whose passes end at ``ends``; ``tails`` block after these (``_tails``).

        ``drained`` is when the first stage's last backward ends at the earliest, after those of other stages (s).
        """
        calls, before, done = self.calls(layout), 0.0, 0.0
        for stage, end, (blocked, behind) in zip(stages, ends, tails, strict=True):
            norm, update = calls.update(stage)
            done = max(done, update + behind)
            before = max(before, (max(end, drained) if stage.first else end) + blocked + norm)
        return (1 - ROUNDING) * (before + done)

    def _tails(
        self, layout: Layout, stages: Sequence[Stage], least: Sequence[Mapping[Call, float]]
    ) -> list[tuple[float, float]]:
        """Seconds over dp that block each stage behind its passes, and behind the optimizer."""
        calls = self.calls(layout)

        def tail(stage: Stage, seconds: Mapping[Call, float]) -> tuple[float, float]:
            reduced, gathered = calls.behind(calls.of(stage))
            return sum(seconds[call] for call in (*reduced, *calls.tied(stage))), sum(
                seconds[call] for call in gathered
            )

        name = "tails", id(calls), layout.schedule, layout.chunks
        return self._once(name, lambda: list(map(tail, stages, least)))

    def _over_dp(self, layout: Layout, least: Sequence[Mapping[Call, float]]) -> list[tuple[float, float]]:
        """Of every stage."""
        name = "over dp", id(self.calls(layout)), layout.schedule, layout.chunks, layout.micro_batch
        return self._once(name, lambda: self._lanes(layout, least))

    def _lanes(
        self, layout: Layout, least: Sequence[Mapping[Call, float]], turns: Turns | None = None
    ) -> list[tuple[float, float]]:
        """Of every stage seconds that hold up its passes, and of its dp lane, by what is known of its schedule."""
        calls, pipeline, many = self.calls(layout), self.pipeline(layout), self.microbatches(layout)
        assert pipeline is not None
        return [over_dp(calls, pipeline, number, many, each, turns) for number, each in enumerate(least)]

    def _sent(self, layout: Layout, least: Sequence[Mapping[Call, float]]) -> list[float]:
        """Seconds of the sends of every stage, of one microbatch."""
        pipeline, size = self.pipeline(layout), self.times(layout).made_of.send_bytes
        assert pipeline is not None

        def sums() -> list[float]:
            found = [0.0] * layout.pp
            for (here, _), (there, _) in pairwise(pipeline.route):
                if here != there:
                    found[here] += least[here][Transfer(there, size)]
                    found[there] += least[there][Transfer(here, size)]
            return found

        return self._once(("sends", grid_of(layout), layout.schedule, layout.chunks, size), sums)

    def _least(self, layout: Layout) -> list[Least]:
        """Least seconds of calls over dp and between stages, of all layouts on the same grid of ranks."""

        def stages() -> list[Least]:
            way = Way(plan_of_layout(layout), self.base.cluster.built, self._methods, self._drawn)
            return [Least(way, stage) for stage in range(layout.pp)]

        return self._once(("least", grid_of(layout)), stages)

    def _played(self, layout: Layout) -> tuple[list[Stage], list[float]] | None:
        """Return the stages, and when their passes end in the schedule."""
        times = self.times(layout)
        stages = self._outlined(layout, times)
        if stages is None or SCHEDULES[layout.schedule].made_for_times:
            return None
        least, schedule = self._least(layout), schedule_of(layout.on(self.base))
        ends = self._schedule_ends(layout, times, least, schedule)
        if layout.zero == 3:
            lanes = [lane for _, lane in self._lanes(layout, least, turns_of(schedule))]
            ends = list(map(max, ends, lanes))
        return stages, ends

    def _schedule_ends(
        self, layout: Layout, times: LeastPassTimes, least: Sequence[Mapping[Call, float]], schedule: Schedule
    ) -> list[float]:
        """When the last action of every stage is over, at the least."""

        def ends() -> list[float]:
            pipeline = self.pipeline(layout)
            assert pipeline is not None
            sends = [
                least[stage][Transfer(other, times.made_of.send_bytes)]
                for (here, _), (there, _) in pairwise(pipeline.route)
                for stage, other in ((here, there), (there, here))
                if here != there
            ]
            latency = 0.0 if self._sends_block else min(sends, default=0.0)
            timing = play(schedule, action_costs(pipeline, times, least, sends_block=self._sends_block), latency)
            return [max(row, default=0.0) for row in timing.ends]

        name = "ends", id(times), grid_of(layout), layout.schedule, layout.chunks, layout.dp
        return self._once(name, ends)


def action_costs(
    pipeline: PipelineRoute, times: LeastPassTimes, least: Sequence[Mapping[Call, float]], *, sends_block: bool
) -> Callable[[Kind, int, int], float]:
    """Return the least seconds of an action by kind, stage and chunk: the pass, the gather before it, a send that
    blocks."""
    slices = slice_times(pipeline, times)
    route, made = pipeline.route, times.made_of

    def seconds(kind: Kind, stage: int, chunk: int) -> float:
        number = route.index((stage, chunk))
        found = slices[number][kind]
        before = number - 1 if kind == "F" else number + 1
        after = number + 1 if kind == "F" else number - 1
        if kind == "W":
            return found
        if made.gathered and 0 <= before < len(route) and route[before][0] != stage:
            found += times.boundary[kind]
        if sends_block and 0 <= after < len(route) and route[after][0] != stage:
            found += least[stage][Transfer(route[after][0], made.send_bytes)]
        return found

    return seconds
