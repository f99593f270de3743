"""Lower bounds of a layout's step time at three levels, from rough to tight; the simulated time is never lower.

Why it is a bound. The engine runs each lane of a rank in order. An op begins when those that it waits for have ended,
and takes at least its planned time: computation is only slowed down (interference, drag), and communication takes at
least its time alone on free links in the fastest group (``free_link_times``). So by induction over the ops in the order
of their ends, each op of a run ends no earlier than in the longest path through a subset of the same ops and waits,
each at its least time.

* ``outline_bound``: on a stage, the first forward comes after a microbatch's forwards of the slices before its first
  (the fill); then it does all its passes; then those slices' backwards follow (the drain; not where a schedule splits
  the backward). Communication of passes over cp and ep is ignored. Gradient norm and optimizer follow; the slowest
  stage counts, since the norm waits for all. A stage does not wait for the drain, which ends on the first stage.

* ``bound_with_ends``: adds what else blocks a stage's main lane: sends, the reduction after the pipeline and the gather
  after the optimizer, where the scenario does not overlap them; under ZeRO 2 and 3 each microbatch's calls over dp.

* ``bound_with_schedule``: simulates the schedule with these times (``schedules.timing``), not fill and drain, and the
  dp lane by the schedule's turns.

Float sums in another order, and the engine's grid, differ by less than the margin ``ROUNDING``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from simcluster.planning.work_kinds import StageSend
from simcluster.scenario.job_conversion import collective_methods
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.schedule_plan import schedule_of
from simcluster.schedules import SCHEDULES, time_actions
from simcluster.schedules.actions import Kind
from simcluster.studies.search import pass_times, stage_outlines
from simcluster.studies.search.free_link_times import Call, FirstRankRoutes, LeastCallTimes, PatternCache
from simcluster.studies.search.layout import Layout
from simcluster.studies.search.pass_times import LayerPassSettings, LeastPassTimes, layer_pass_settings, tp_groups_key
from simcluster.studies.search.stage_outlines import PipelineRoute, StageDataParallelism, StageOutline, Turns

ROUNDING = 1e-6
Known = TypeVar("Known")
_Stages = Sequence[Mapping[Call, float]]
_Blocked = list[tuple[float, float]]


class StepTimeBounds:
    """Lower bounds of the step times of a scenario's layouts; intermediate results of several layouts are cached."""

    def __init__(self, base: Scenario, layouts: Sequence[Layout]) -> None:
        """Prepare the bounds of these ``layouts``; other layouts have no bounds."""
        self.base = base
        self._methods = collective_methods(base)
        self._known: dict[object, Any] = {}
        self._drawn: PatternCache = {}
        self._near: dict[object, dict[LayerPassSettings, Layout]] = {}  # layouts of all shapes that share tp groups
        for layout in layouts:
            self._near.setdefault(tp_groups_key(layout), {}).setdefault(layer_pass_settings(layout), layout)

    def _fetch_cached(self, name: object, make: Callable[[], Known]) -> Known:
        if name not in self._known:
            self._known[name] = make()
        found: Known = self._known[name]
        return found

    # --- the three levels ---------------------------------------------------------------------------------------------

    def outline_bound(self, layout: Layout) -> float:
        """Return the roughest lower bound of the step time (s): passes, fill and drain, gradient norm, optimizer."""
        times, many = self._tp_pass_times(layout), self._count_microbatches(layout)
        stages = self._stage_outlines(layout, times)
        if stages is None:  # some stage does at least the mean of all stages' work
            whole = times.slice_times(range(self.base.model.layers), embedding=True, lm_head=True)
            mean = many * (whole["F"] + min(whole["B"], whole["I"] + whole["W"])) / layout.pp
            return (1 - ROUNDING) * mean
        slowest: dict[object, StageOutline] = {}  # of stages that hold the same
        for stage in sorted(stages, key=lambda each: each.passes_end):
            slowest[stage.contents] = stage
        few = list(slowest.values())
        drained = max(stage.passes_end + stage.drain_seconds for stage in stages)
        return self._step_time_bound(layout, few, [stage.passes_end for stage in few], [(0.0, 0.0)] * len(few), drained)

    def bound_with_ends(self, layout: Layout) -> float:
        """Return a tighter lower bound of the step time (s), which includes blocking sends, reductions and gathers."""
        stages = self._stage_outlines(layout, self._pass_times(layout))
        if stages is None:
            return self.outline_bound(layout)
        least, many = self._least_call_times(layout), self._count_microbatches(layout)
        name = "over dp", id(self._stage_dp(layout)), layout.schedule, layout.chunks, layout.micro_batch
        over_dp = self._fetch_cached(name, lambda: self._blocking_dp_seconds(layout, least))
        sent = self._send_seconds(layout, least) if self._has_blocking_sends else [0.0] * layout.pp
        known = zip(stages, sent, over_dp, strict=True)
        passed = [stage.passes_end + many * sending + held_up for stage, sending, (held_up, _) in known]
        ends = [max(end, lane) for end, (_, lane) in zip(passed, over_dp, strict=True)]
        drained = max(end + stage.drain_seconds for stage, end in zip(stages, passed, strict=True))
        return self._step_time_bound(layout, stages, ends, self._tail_seconds(layout, stages, least), drained)

    def bound_with_schedule(self, layout: Layout) -> float:
        """Return the tightest lower bound of the step time (s), from a simulation of the pipeline schedule."""
        stages = self._stage_outlines(layout, self._pass_times(layout))
        if stages is None or SCHEDULES[layout.schedule].depends_on_times:
            return self.bound_with_ends(layout)
        least = self._least_call_times(layout)
        ends = self._fetch_cached(("scheduled", layout), lambda: self._least_schedule_ends(layout, least))
        tails = self._tail_seconds(layout, stages, least)
        return max(self._step_time_bound(layout, stages, ends, tails), self.bound_with_ends(layout))

    # --- parts of a bound ---------------------------------------------------------------------------------------------

    def _pass_times(self, layout: Layout) -> LeastPassTimes:
        """Return the least times (s) of a layout's passes, including communication over tp, cp and ep."""
        if layout.cp == layout.ep == 1:
            return self._tp_pass_times(layout)

        def compute_times() -> LeastPassTimes:
            parts, of_stages = self._pass_segments(layout), self._least_call_times(layout)
            least = {call: min(each[call] for each in of_stages) for call in parts.collectives}
            return pass_times.least_pass_times(self.base, parts, least)

        return self._fetch_cached(("times", layout.communication_key, layer_pass_settings(layout)), compute_times)

    def _tp_pass_times(self, layout: Layout) -> LeastPassTimes:
        """Return the least times (s) of a layout's passes without cp and ep communication, cached for other layouts."""

        def compute_times() -> dict[LayerPassSettings, LeastPassTimes]:  # of many calls together
            parts = {shape: self._pass_segments(each) for shape, each in self._near[tp_groups_key(layout)].items()}
            calls = [call for each in parts.values() for call in each.collectives]
            least = dict.fromkeys(calls, 0.0) | pass_times.least_tp_seconds(self.base, layout, calls)
            return {shape: pass_times.least_pass_times(self.base, each, least) for shape, each in parts.items()}

        return self._fetch_cached(("times", tp_groups_key(layout)), compute_times)[layer_pass_settings(layout)]

    def _pass_segments(self, layout: Layout) -> pass_times.PassSegments:
        name = "parts", layout.gpus, layout.tp, layer_pass_settings(layout)
        return self._fetch_cached(name, lambda: pass_times.make_pass_segments(self.base, layout))

    def _pipeline_route(self, layout: Layout) -> PipelineRoute | None:
        name = layout.schedule, layout.pp, layout.chunks
        return self._fetch_cached(("pipeline", *name), lambda: stage_outlines.find_pipeline_route(self.base, *name))

    def _count_microbatches(self, layout: Layout) -> int:
        return self.base.training.global_batch // (layout.dp * layout.micro_batch)

    @property
    def _has_blocking_sends(self) -> bool:
        return not self.base.overlap.pipeline and self.base.pipeline.p2p == "async"

    def _stage_outlines(self, layout: Layout, times: LeastPassTimes) -> list[StageOutline] | None:
        """Return the outlines of a layout's stages; None if layer split or route depend on simulated times."""
        pipeline, many = self._pipeline_route(layout), self._count_microbatches(layout)
        if pipeline is None:
            return None
        name = "stages", id(times), layout.pp, layout.dp, layout.schedule, layout.chunks
        split = SCHEDULES[layout.schedule].splits_backward
        return self._fetch_cached(name, lambda: times.outline_stages(pipeline, many, split=split))

    def _stage_dp(self, layout: Layout) -> StageDataParallelism:
        name = "calls", layout.communication_key, layout.zero
        return self._fetch_cached(name, lambda: StageDataParallelism(self.base, layout))

    def _step_time_bound(
        self, layout: Layout, stages: Sequence[StageOutline], ends: Sequence[float], tails: _Blocked, drain: float = 0.0
    ) -> float:
        """Return a lower bound of the step time (s) from the passes' ``ends``, dp communication and the optimizer.

        ``drain`` is a lower bound of the end of the first stage's last backward, after those of other stages (s).
        """
        calls, before, done = self._stage_dp(layout), 0.0, 0.0
        for stage, end, (blocked, after) in zip(stages, ends, tails, strict=True):
            norm, update = calls.norm_and_optimizer_seconds(stage.contents)
            done = max(done, update + after)
            before = max(before, (max(end, drain) if stage.contents.has_first_slice else end) + blocked + norm)
        return (1 - ROUNDING) * (before + done)

    def _tail_seconds(self, layout: Layout, stages: Sequence[StageOutline], least: _Stages) -> _Blocked:
        """Return, for each stage, the seconds of blocking dp communication before and after the optimizer."""
        calls = self._stage_dp(layout)

        def compute_tails() -> _Blocked:
            each = zip(least, (calls.blocking_collectives(stage.contents) for stage in stages), strict=True)
            return [
                (sum(own[call] for call in ahead), sum(own[call] for call in after)) for own, (ahead, after) in each
            ]

        return self._fetch_cached(("tails", id(calls), layout.schedule, layout.chunks), compute_tails)

    def _blocking_dp_seconds(self, layout: Layout, least: _Stages, turns: Turns | None = None) -> _Blocked:
        """Return, for each stage, how long (s) dp communication blocks passes, and how long the dp stream is busy."""
        calls, route, many = self._stage_dp(layout), self._pipeline_route(layout), self._count_microbatches(layout)
        assert route is not None
        return [calls.dp_communication_seconds(route, number, many, each, turns) for number, each in enumerate(least)]

    def _send_seconds(self, layout: Layout, least: _Stages) -> list[float]:
        """Return, for each stage, the least time (s) of its sends for one microbatch."""
        size = self._pass_times(layout).pass_segments.send_bytes

        def sum_sends() -> list[float]:
            found = [0.0] * layout.pp
            for here, there in self._list_send_stages(layout):
                found[here] += least[here][StageSend(there, size)]
            return found

        return self._fetch_cached(("sends", layout.communication_key, layout.schedule, layout.chunks, size), sum_sends)

    def _list_send_stages(self, layout: Layout) -> list[tuple[int, int]]:
        """Return the (source, target) stages of all sends of one microbatch, forward and backward."""
        pipeline = self._pipeline_route(layout)
        assert pipeline is not None
        pairs = [(here, there) for (here, _), (there, _) in pairwise(pipeline.route) if here != there]
        return [hop for here, there in pairs for hop in ((here, there), (there, here))]

    def _least_call_times(self, layout: Layout) -> list[LeastCallTimes]:
        """Return, for each stage, the least times (s) of its dp collectives and sends, cached by rank grid."""

        def make_call_times() -> list[LeastCallTimes]:
            way = FirstRankRoutes(layout.rank_grid, self.base.cluster.built, self._methods, self._drawn)
            return [LeastCallTimes(way, stage) for stage in range(layout.pp)]

        return self._fetch_cached(("least", layout.communication_key), make_call_times)

    def _least_schedule_ends(self, layout: Layout, least: _Stages) -> list[float]:
        """Return the earliest end (s) of each stage's last pass, from a simulation of the schedule."""
        times, schedule = self._pass_times(layout), schedule_of(layout.apply_to(self.base))
        pipeline = self._pipeline_route(layout)
        assert pipeline is not None

        def simulate_ends() -> list[float]:
            size = times.pass_segments.send_bytes
            sends = [least[here][StageSend(there, size)] for here, there in self._list_send_stages(layout)]
            latency = 0.0 if self._has_blocking_sends else min(sends, default=0.0)
            costs = make_action_costs(pipeline, times, least, sends_block=self._has_blocking_sends)
            timing = time_actions(schedule, costs, latency)
            return [max(row, default=0.0) for row in timing.ends]

        name = "ends", id(times), layout.communication_key, layout.schedule, layout.chunks, layout.dp
        found = self._fetch_cached(name, simulate_ends)
        if layout.zero < 3:
            return found
        lanes = self._blocking_dp_seconds(layout, least, stage_outlines.count_turns_to_backward(schedule))
        return [max(end, lane) for end, (_, lane) in zip(found, lanes, strict=True)]


def make_action_costs(
    pipeline: PipelineRoute, times: LeastPassTimes, least: _Stages, *, sends_block: bool
) -> Callable[[Kind, int, int], float]:
    """Return a function that returns the least time (s) of a pass, given its kind, stage and chunk.

    They include the gather before a pass and a blocking send after it.
    """
    slices, route, made = times.times_by_slice(pipeline), pipeline.route, times.pass_segments

    def action_seconds(kind: Kind, stage: int, chunk: int) -> float:
        number = route.index((stage, chunk))
        found = slices[number][kind]
        if kind == "W":
            return found
        before, after = (number - 1, number + 1) if kind == "F" else (number + 1, number - 1)
        if made.needs_gather and 0 <= before < len(route) and route[before][0] != stage:
            found += times.gather_times[kind]
        if sends_block and 0 <= after < len(route) and route[after][0] != stage:
            found += least[stage][StageSend(route[after][0], made.send_bytes)]
        return found

    return action_seconds
