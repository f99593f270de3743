"""Lower bounds of a layout's step time, at three levels from cheap to tight; none exceeds the simulated time.

Why it is a bound. The engine runs each lane of a rank in order. An op begins when those that it waits for have ended,
and takes at least its planned time: computation is only slowed down (interference, drag), and communication takes at
least its time alone on free links in the fastest group (``free_links``). So by induction over the ops in the order of
their ends, each op of a run ends no earlier than in the longest path through a subset of the same ops and waits, each
at its least time.

* ``outline``: on a stage, the first forward comes after one microbatch's forwards of the slices before its first (the
  fill); then it does all its passes; then those slices' backwards follow (the drain; not where a schedule splits the
  backward).  Communication of passes over cp and ep is ignored.  Gradient norm and optimizer follow; the slowest stage
  counts, since the norm waits for all.  A stage does not wait for the drain, which ends on the first stage.

* ``with_ends``: adds what else blocks a stage's main lane: sends, the reduction after the pipeline and the gather
  after the optimizer, where the scenario does not overlap them; under ZeRO 2 and 3 each microbatch's calls over dp.

* ``with_schedule``: simulates the schedule with these times (``schedules.timing``) instead of fill and drain, and the
  dp lane by the schedule's turns.

Float sums in another order, and the engine's grid, differ by less than the margin ``ROUNDING``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from simcluster.planning.works import Transfer
from simcluster.scenario.job import collective_methods
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.schedule_plan import schedule_of
from simcluster.schedules import SCHEDULES, time_actions
from simcluster.schedules.actions import Kind
from simcluster.studies.search.free_links import Call, FirstRankRoutes, LeastCallTimes, PatternCache
from simcluster.studies.search.layout import Layout
from simcluster.studies.search.pass_times import (
    LayerShape,
    LeastPassTimes,
    PassParts,
    layer_shape_of,
    least_times,
    least_tp_seconds,
    make_pass_parts,
    tp_groups_key,
)
from simcluster.studies.search.pipelines import PipelineRoute, Stage, StageCalls, Turns, count_turns, pipeline_route

ROUNDING = 1e-6
Known = TypeVar("Known")
_Stages = Sequence[Mapping[Call, float]]
_Blocked = list[tuple[float, float]]


class Bounds:
    """Lower bounds of the step times of one scenario's layouts; results that layouts share are cached."""

    def __init__(self, base: Scenario, layouts: Sequence[Layout]) -> None:
        """Prepare the bounds of these ``layouts``, and no others."""
        self.base = base
        self._methods = collective_methods(base)
        self._known: dict[object, Any] = {}
        self._drawn: PatternCache = {}
        self._near: dict[object, dict[LayerShape, Layout]] = {}  # layouts of all shapes that share tp groups
        for layout in layouts:
            self._near.setdefault(tp_groups_key(layout), {}).setdefault(layer_shape_of(layout), layout)

    def _cached(self, name: object, make: Callable[[], Known]) -> Known:
        if name not in self._known:
            self._known[name] = make()
        found: Known = self._known[name]
        return found

    # --- the three steps ----------------------------------------------------------------------------------------------

    def outline(self, layout: Layout) -> float:
        """Return the cheapest lower bound of a layout's step time (s): passes, fill and drain, norm and optimizer."""
        times, many = self._near_times(layout), self._microbatches(layout)
        stages = self._stage_outlines(layout, times)
        if stages is None:  # some stage does at least the mean of all stages' work
            whole = times.of(range(self.base.model.layers), embedding=True, lm_head=True)
            mean = many * (whole["F"] + min(whole["B"], whole["I"] + whole["W"])) / layout.pp
            return (1 - ROUNDING) * mean
        slowest: dict[object, Stage] = {}  # of stages that hold the same
        for stage in sorted(stages, key=lambda each: each.end):
            slowest[stage.held] = stage
        few = list(slowest.values())
        drained = max(stage.end + stage.drain for stage in stages)
        return self._step_time_with_tails(layout, few, [stage.end for stage in few], [(0.0, 0.0)] * len(few), drained)

    def with_ends(self, layout: Layout) -> float:
        """Return the lower bound of the step time (s) that adds blocking sends, reductions and gathers."""
        stages = self._stage_outlines(layout, self._pass_times(layout))
        if stages is None:
            return self.outline(layout)
        least, many = self._least_call_times(layout), self._microbatches(layout)
        name = "over dp", id(self._stage_calls(layout)), layout.schedule, layout.chunks, layout.micro_batch
        over_dp = self._cached(name, lambda: self._blocking_dp_seconds(layout, least))
        sent = self._send_seconds(layout, least) if self._sends_block else [0.0] * layout.pp
        known = zip(stages, sent, over_dp, strict=True)
        passed = [stage.end + many * sending + held_up for stage, sending, (held_up, _) in known]
        ends = [max(end, lane) for end, (_, lane) in zip(passed, over_dp, strict=True)]
        drained = max(end + stage.drain for stage, end in zip(stages, passed, strict=True))
        return self._step_time_with_tails(layout, stages, ends, self._tails(layout, stages, least), drained)

    def with_schedule(self, layout: Layout) -> float:
        """Return the lower bound of the step time (s) with a simulated schedule; InputError if it cannot be made."""
        stages = self._stage_outlines(layout, self._pass_times(layout))
        if stages is None or SCHEDULES[layout.schedule].made_for_times:
            return self.with_ends(layout)
        least = self._least_call_times(layout)
        ends = self._cached(("scheduled", layout), lambda: self._least_schedule_ends(layout, least))
        return max(
            self._step_time_with_tails(layout, stages, ends, self._tails(layout, stages, least)), self.with_ends(layout)
        )

    # --- their parts --------------------------------------------------------------------------------------------------

    def _pass_times(self, layout: Layout) -> LeastPassTimes:
        """Return the least times (s) of a layout's passes, including communication over tp, cp and ep."""
        if layout.cp == layout.ep == 1:
            return self._near_times(layout)

        def times() -> LeastPassTimes:
            parts, of_stages = self._pass_parts(layout), self._least_call_times(layout)
            return least_times(self.base, parts, {call: min(each[call] for each in of_stages) for call in parts.calls})

        return self._cached(("times", layout.grid, layer_shape_of(layout)), times)

    def _near_times(self, layout: Layout) -> LeastPassTimes:
        """Return the least times (s) of a layout's passes without cp and ep communication, shared by many layouts."""

        def times() -> dict[LayerShape, LeastPassTimes]:  # of many calls together
            parts = {shape: self._pass_parts(each) for shape, each in self._near[tp_groups_key(layout)].items()}
            calls = [call for each in parts.values() for call in each.calls]
            least = dict.fromkeys(calls, 0.0) | least_tp_seconds(self.base, layout, calls)
            return {shape: least_times(self.base, each, least) for shape, each in parts.items()}

        return self._cached(("times", tp_groups_key(layout)), times)[layer_shape_of(layout)]

    def _pass_parts(self, layout: Layout) -> PassParts:
        name = "parts", layout.gpus, layout.tp, layer_shape_of(layout)
        return self._cached(name, lambda: make_pass_parts(self.base, layout))

    def _pipeline_route(self, layout: Layout) -> PipelineRoute | None:
        name = layout.schedule, layout.pp, layout.chunks
        return self._cached(("pipeline", *name), lambda: pipeline_route(self.base, *name))

    def _microbatches(self, layout: Layout) -> int:
        return self.base.training.global_batch // (layout.dp * layout.micro_batch)

    @property
    def _sends_block(self) -> bool:
        return not self.base.overlap.pipeline and self.base.pipeline.p2p == "async"

    def _stage_outlines(self, layout: Layout, times: LeastPassTimes) -> list[Stage] | None:
        """Return the outlines of a layout's stages; None if the schedule's name does not determine cut or route."""
        pipeline, many = self._pipeline_route(layout), self._microbatches(layout)
        if pipeline is None:
            return None
        name = "stages", id(times), layout.pp, layout.dp, layout.schedule, layout.chunks
        split = SCHEDULES[layout.schedule].splits_backward
        return self._cached(name, lambda: times.stages(pipeline, many, split=split))

    def _stage_calls(self, layout: Layout) -> StageCalls:
        return self._cached(("calls", layout.grid, layout.zero), lambda: StageCalls(self.base, layout))

    def _step_time_with_tails(
        self, layout: Layout, stages: Sequence[Stage], ends: Sequence[float], tails: _Blocked, drained: float = 0.0
    ) -> float:
        """Return the step time (s) of stages whose passes end at ``ends``, followed by the blocking ``tails``.

        ``drained`` is a lower bound of the end of the first stage's last backward, after those of other stages (s).
        """
        calls, before, done = self._stage_calls(layout), 0.0, 0.0
        for stage, end, (blocked, after) in zip(stages, ends, tails, strict=True):
            norm, update = calls.update(stage.held)
            done = max(done, update + after)
            before = max(before, (max(end, drained) if stage.held.first else end) + blocked + norm)
        return (1 - ROUNDING) * (before + done)

    def _tails(self, layout: Layout, stages: Sequence[Stage], least: _Stages) -> _Blocked:
        """Return the seconds of dp communication that block each stage after its passes, and after the optimizer."""
        calls = self._stage_calls(layout)

        def tails() -> _Blocked:
            each = zip(least, (calls.tail(stage.held) for stage in stages), strict=True)
            return [
                (sum(own[call] for call in ahead), sum(own[call] for call in after)) for own, (ahead, after) in each
            ]

        return self._cached(("tails", id(calls), layout.schedule, layout.chunks), tails)

    def _blocking_dp_seconds(self, layout: Layout, least: _Stages, turns: Turns | None = None) -> _Blocked:
        """Return for each stage the seconds of dp communication that block its passes, and the time of its dp lane."""
        calls, pipeline, many = self._stage_calls(layout), self._pipeline_route(layout), self._microbatches(layout)
        assert pipeline is not None
        return [calls.over_dp(pipeline, number, many, each, turns) for number, each in enumerate(least)]

    def _send_seconds(self, layout: Layout, least: _Stages) -> list[float]:
        """Return the time (s) of each stage's sends for one microbatch."""
        size = self._pass_times(layout).made_of.send_bytes

        def sums() -> list[float]:
            found = [0.0] * layout.pp
            for here, there in self._send_hops(layout):
                found[here] += least[here][Transfer(there, size)]
            return found

        return self._cached(("sends", layout.grid, layout.schedule, layout.chunks, size), sums)

    def _send_hops(self, layout: Layout) -> list[tuple[int, int]]:
        """Return the source and target stages of each send of one microbatch, forward and backward."""
        pipeline = self._pipeline_route(layout)
        assert pipeline is not None
        pairs = [(here, there) for (here, _), (there, _) in pairwise(pipeline.route) if here != there]
        return [hop for here, there in pairs for hop in ((here, there), (there, here))]

    def _least_call_times(self, layout: Layout) -> list[LeastCallTimes]:
        """Return per stage the least times (s) of calls over dp and between stages; equal for layouts on one grid."""

        def stages() -> list[LeastCallTimes]:
            way = FirstRankRoutes(layout.plan, self.base.cluster.built, self._methods, self._drawn)
            return [LeastCallTimes(way, stage) for stage in range(layout.pp)]

        return self._cached(("least", layout.grid), stages)

    def _least_schedule_ends(self, layout: Layout, least: _Stages) -> list[float]:
        """Return the least end (s) of each stage's last action, from a simulation of the layout's schedule."""
        times, schedule, pipeline = (
            self._pass_times(layout),
            schedule_of(layout.on(self.base)),
            self._pipeline_route(layout),
        )
        assert pipeline is not None

        def ends() -> list[float]:
            size = times.made_of.send_bytes
            sends = [least[here][Transfer(there, size)] for here, there in self._send_hops(layout)]
            latency = 0.0 if self._sends_block else min(sends, default=0.0)
            timing = time_actions(
                schedule, action_costs(pipeline, times, least, sends_block=self._sends_block), latency
            )
            return [max(row, default=0.0) for row in timing.ends]

        name = "ends", id(times), layout.grid, layout.schedule, layout.chunks, layout.dp
        found = self._cached(name, ends)
        if layout.zero < 3:
            return found
        lanes = self._blocking_dp_seconds(layout, least, count_turns(schedule))
        return [max(end, lane) for end, (_, lane) in zip(found, lanes, strict=True)]


def action_costs(
    pipeline: PipelineRoute, times: LeastPassTimes, least: _Stages, *, sends_block: bool
) -> Callable[[Kind, int, int], float]:
    """Return a function that gives the least time (s) of an action by kind, stage and chunk.

    They include the gather before a pass and a blocking send after it.
    """
    slices, route, made = times.of_slices(pipeline), pipeline.route, times.made_of

    def seconds(kind: Kind, stage: int, chunk: int) -> float:
        number = route.index((stage, chunk))
        found = slices[number][kind]
        if kind == "W":
            return found
        before, after = (number - 1, number + 1) if kind == "F" else (number + 1, number - 1)
        if made.gathered and 0 <= before < len(route) and route[before][0] != stage:
            found += times.boundary[kind]
        if sends_block and 0 <= after < len(route) and route[after][0] != stage:
            found += least[stage][Transfer(route[after][0], made.send_bytes)]
        return found

    return seconds
