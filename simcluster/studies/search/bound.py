"""A lower bound of a layout's step time, in three steps from cheap to tight; none is ever above what the engine plays.

Why.  The engine plays each lane of a rank in order, an op begins when those it waits for are over, and takes at least
its planned time: compute is only slowed down (interference, drag), communication takes at least what it takes alone on
free links in the fastest group (``free_links``).  So by induction over the ops in the order of their ends, everything
in a run ends no earlier than in the longest path through a part of the same ops and waits, each at its least time.

* ``outline``: on a stage, the first forward comes after one microbatch's forwards of the slices before its first (the
  fill); then it does all its passes; then those slices' backwards are to come (the drain; not where a schedule splits
  the backward).  Gradient norm and optimizer follow; the slowest stage counts: the norm waits for all.
* ``with_ends``: adds what holds up a stage's main lane besides: sends, the reduction behind the pipeline and the gather
  behind the optimizer, where the scenario does not overlap them; under ZeRO 2 and 3 what each microbatch sends over dp.
* ``with_schedule``: the schedule played with these times (``schedules.timing``), instead of fill and drain.

Float sums in another order and the engine's grid, differ by less than ``ROUNDING`` takes off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeVar

from simcluster.model import shards
from simcluster.planning.parallel import Plan
from simcluster.planning.works import Collective, Transfer
from simcluster.scenario.job import methods_of
from simcluster.scenario.memory_plan import ELEMENT_BYTES
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.schedule_plan import schedule_of
from simcluster.schedules import SCHEDULES, Schedule, play
from simcluster.schedules.actions import Kind
from simcluster.studies.search.free_links import Call, Least, Way
from simcluster.studies.search.pass_times import (
    LeastPassTimes,
    shape_of_layout,
    slice_times,
    times_of,
    tp_is_fastest,
)
from simcluster.studies.search.pipelines import PipelineRoute, Stage, pipeline_of
from simcluster.studies.search.space import Layout

ROUNDING = 1e-6
Known = TypeVar("Known")


def grid_of(layout: Layout) -> object:
    """What decides which ranks talk to which."""
    return layout.gpus, layout.tp, layout.pp, layout.order


class Bounds:
    """Lower bounds of the layouts of one scenario; what layouts have in common is worked out once."""

    def __init__(self, base: Scenario, layouts: Sequence[Layout]) -> None:
        """``layouts`` are all that will be asked for."""
        self.base = base
        self._shapes = list(dict.fromkeys(map(shape_of_layout, layouts)))
        self._methods = methods_of(base)
        self._known: dict[object, Any] = {}

    def _once(self, name: object, make: Callable[[], Known]) -> Known:
        """What is known under this name, worked out when it is first asked for."""
        if name not in self._known:
            self._known[name] = make()
        found: Known = self._known[name]
        return found

    # --- the three steps ----------------------------------------------------------------------------------------------

    def outline(self, layout: Layout) -> float:
        """Passes, fill and drain, norm and optimizer."""
        times, stages = self.times(layout), self._outlined(layout)
        if stages is None:
            return (1 - ROUNDING) * self._mean(layout, times)
        slowest: dict[tuple[int, bool, bool], Stage] = {}  # of stages that hold as much
        for stage in stages:
            held = stage[3:]
            if held not in slowest or stage.seconds > slowest[held].seconds:
                slowest[held] = stage
        few = list(slowest.values())
        return self._with_optimizer(layout, times, few, [stage.seconds for stage in few], [(0.0, 0.0)] * len(few))

    def with_ends(self, layout: Layout) -> float:
        """With what blocks at the ends, and sends."""
        times, stages = self.times(layout), self._outlined(layout)
        if stages is None:
            return self.outline(layout)
        least = self._least(layout)
        beside, many = self._over_dp(layout, least), self.microbatches(layout)
        sent = self._sent(layout, least) if self._sends_block else [0.0] * layout.pp
        known = zip(stages, sent, beside, strict=True)
        ends = [stage.seconds + many * sending + held_up for stage, sending, (held_up, _) in known]
        found = self._with_optimizer(layout, times, stages, ends, self._tails(layout, stages, least))
        return max(found, (1 - ROUNDING) * max(lane for _, lane in beside))

    def with_schedule(self, layout: Layout) -> float:
        """With the schedule played; InputError if it cannot be."""
        times, stages = self.times(layout), self._outlined(layout)
        if stages is None or SCHEDULES[layout.schedule].made_for_times:
            return self.with_ends(layout)
        least = self._least(layout)
        ends = self._schedule_ends(layout, times, least)
        found = self._with_optimizer(layout, times, stages, ends, self._tails(layout, stages, least))
        return max(found, self.with_ends(layout))

    # --- what it is made of -------------------------------------------------------------------------------------------

    def times(self, layout: Layout) -> LeastPassTimes:
        """Least times of the layout's passes."""
        name = "times", layout.gpus, layout.tp, () if tp_is_fastest(layout) else (layout.pp, layout.order)
        shapes = (shape for shape in self._shapes if layout.tp > 1 or not shape.sequence_parallel)
        return self._once(name, lambda: times_of(self.base, layout, list(shapes)))[shape_of_layout(layout)]

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

    def _outlined(self, layout: Layout) -> list[Stage] | None:
        """The stages, None where the cut or the way through them is not known by the name of the schedule."""
        fastest = () if tp_is_fastest(layout) else layout.order
        return self._once(("stages", *layout[:9], fastest), lambda: self._stages_of(layout))

    def _stages_of(self, layout: Layout) -> list[Stage] | None:
        pipeline = self.pipeline(layout)
        if pipeline is None:
            return None
        times, many = self.times(layout), self.microbatches(layout)
        split = SCHEDULES[layout.schedule].splits_backward
        slices = slice_times(pipeline, times)
        forward = [each["F"] for each in slices]
        backward = [min(each["B"], each["I"] + each["W"]) if split else each["B"] for each in slices]
        forwards, backwards = [0.0, *accumulate(forward)], [0.0, *accumulate(backward)]
        found = []
        for held in pipeline.held:
            first = held.slices[0]
            work = many * sum(forward[number] + backward[number] for number in held.slices)
            drain = 0.0 if split else backwards[first]
            found.append(Stage(forwards[first], work, drain, held.layers, held.first, held.last))
        return found

    def _mean(self, layout: Layout, times: LeastPassTimes) -> float:
        """Some stage does at least the mean of all stages' work."""
        whole = times.of(range(self.base.model.layers), embedding=True, lm_head=True)
        each = whole["F"] + min(whole["B"], whole["I"] + whole["W"])
        return self.microbatches(layout) * each / layout.pp

    def _parameters(self, layout: Layout, stage: Stage) -> int:
        return shards.stage_parameters_per_tp_rank(
            self.base.model, layout.tp, layers=stage.layers, first=stage.first, last=stage.last
        )

    def _with_optimizer(
        self, layout: Layout, times: LeastPassTimes, stages: Sequence[Stage], ends: Sequence[float],
        tails: Sequence[tuple[float, float]],
    ) -> float:  # fmt: skip
        """The step whose stages have done their passes at ``ends``, with what blocks behind them (``_tails``)."""
        shared = self._replicas(layout) if layout.zero else 1
        done = before = 0.0
        for stage, end, (blocked, behind) in zip(stages, ends, tails, strict=True):
            norm, update = self._update(times, self._parameters(layout, stage) / shared)
            done = max(done, update + behind)
            before = max(before, end + blocked + norm)
        return (1 - ROUNDING) * (before + done)

    def _update(self, times: LeastPassTimes, parameters: float) -> tuple[float, float]:
        """Seconds of gradient norm and optimizer on so many parameters."""

        def seconds() -> tuple[float, float]:
            on_gpu = self.base.memory.offload.optimizer == "none"
            return times.data.norm_seconds(parameters), times.data.optimizer_seconds(parameters) if on_gpu else 0.0

        return self._once(("update", parameters), seconds)

    def _replicas(self, layout: Layout) -> int:
        return self.base.fsdp.shard_group or layout.dp if layout.zero == 3 else layout.dp

    def _tails(
        self, layout: Layout, stages: Sequence[Stage], least: Sequence[Mapping[Call, float]]
    ) -> list[tuple[float, float]]:
        """Seconds over dp that block each stage behind its passes, and behind the optimizer."""

        def tail(stage: Stage, seconds: Mapping[Call, float]) -> tuple[float, float]:
            calls = (*self._dp_calls(layout, stage), self._tied_call(layout, stage))
            reduced, gathered, tied = (seconds[call] if call else 0.0 for call in calls)
            return reduced + tied, gathered

        name = "tails", grid_of(layout), layout.schedule, layout.chunks, layout.zero
        return self._once(name, lambda: list(map(tail, stages, least)))

    def _dp_calls(self, layout: Layout, stage: Stage) -> tuple[Collective | None, Collective | None]:
        """The reduction and the gather over dp that block, if they do."""
        overlap, data = self.base.overlap, self.times(layout).data
        parameters = self._parameters(layout, stage)
        reduce_ = gather = None
        if layout.dp > 1 and layout.zero < 2 and not overlap.grad_reduce:
            kind = "reduce_scatter" if layout.zero else "all_reduce"
            reduce_ = Collective(kind, "dp", parameters * data.gradient_bytes)
        if layout.dp > 1 and layout.zero in (1, 2) and not overlap.param_gather:
            gather = Collective("all_gather", "dp", parameters * data.parameter_bytes)
        return reduce_, gather

    def _tied_call(self, layout: Layout, stage: Stage) -> Collective | None:
        """The sum of the gradients of tied embeddings that are on two stages, for one of these."""
        if not self.base.model.tied_embeddings or stage.first == stage.last:
            return None
        share = self._replicas(layout) if layout.zero == 3 else 1
        size = (
            shards.lm_head_parameters_per_tp_rank(self.base.model, layout.tp) * self.times(layout).data.gradient_bytes
        )
        return Collective("all_reduce", "embedding", size / share)

    def _each_calls(self, layout: Layout, number: int) -> tuple[Collective, ...]:
        """What goes over dp again and again: under ZeRO 2 a slice's gradients, if they block, by its number on the
        stage; under ZeRO 3 the gather and the reduction of a full unit of layers."""
        pipeline, data = self.pipeline(layout), self.times(layout).data
        if layout.dp == 1 or layout.zero < 2 or self.base.fsdp.shard_group or pipeline is None:
            return ()
        if layout.zero == 2:
            if self.base.overlap.grad_reduce:
                return ()
            sizes = [self._slice_parameters(layout, pipeline, each) for each in pipeline.held[number].slices]
            return tuple(Collective("reduce_scatter", "dp", size * data.gradient_bytes) for size in sizes if size)
        size = self.base.fsdp.unit_layers * shards.layer_parameters_per_tp_rank(self.base.model, layout.tp)
        gathered = size * ELEMENT_BYTES[self.base.training.precision]
        return Collective("all_gather", "dp", gathered), Collective("reduce_scatter", "dp", size * data.gradient_bytes)

    def _slice_parameters(self, layout: Layout, pipeline: PipelineRoute, number: int) -> float:
        """Parameters of a slice on a rank of tp, as they are reduced."""
        first, last = number == 0, number == len(pipeline.counts) - 1
        layers, model = pipeline.counts[number], self.base.model
        both = pipeline.route[0][0] == pipeline.route[-1][0]
        found = shards.stage_parameters_per_tp_rank(model, layout.tp, layers=layers, first=first, last=last)
        if last and not first and both and model.tied_embeddings:  # one copy serves both ends
            found -= shards.lm_head_parameters_per_tp_rank(model, layout.tp)
        return found

    def _over_dp(self, layout: Layout, least: Sequence[Mapping[Call, float]]) -> list[tuple[float, float]]:
        """Of every stage."""
        name = "over dp", grid_of(layout), layout.schedule, layout.chunks, layout.zero, layout.micro_batch
        return self._once(name, lambda: [self._over_dp_of(layout, number, each) for number, each in enumerate(least)])

    def _over_dp_of(self, layout: Layout, number: int, least: Mapping[Call, float]) -> tuple[float, float]:
        """Seconds that a stage's passes are held up by what goes over dp meanwhile, and seconds of its dp lanes.

        Without overlap a use of a unit waits for its gather, which begins when the use before it is over, and for the
        last reduction; so they all come one after the other.  Units that may stay from forward to backward (as many as
        are there at once) are not counted, nor units that are not full.
        """
        calls = self._each_calls(layout, number)
        if not calls:
            return 0.0, 0.0
        seconds, many, fsdp = [least[call] for call in calls], self.microbatches(layout), self.base.fsdp
        times = many if fsdp.sync_every_microbatch else 1
        if layout.zero == 2:
            return times * sum(seconds), 0.0
        pipeline, overlap = self.pipeline(layout), self.base.overlap
        assert pipeline is not None
        stays = (fsdp.prefetch if overlap.param_gather else 0) + 1
        units = [pipeline.counts[each] // fsdp.unit_layers for each in pipeline.held[number].slices]
        again = sum(count + max(0, count - stays) for count in units) if fsdp.reshard_after_forward else 0
        gathers, reductions = many * again * seconds[0], times * sum(units) * seconds[1]
        together = max if fsdp.lanes == "two" else sum
        blocking = [
            time for time, beside in ((gathers, overlap.param_gather), (reductions, overlap.grad_reduce)) if not beside
        ]
        return together([*blocking, 0.0]), together([gathers, reductions])

    def _sent(self, layout: Layout, least: Sequence[Mapping[Call, float]]) -> list[float]:
        """Seconds of the sends of every stage, of one microbatch."""
        pipeline, size = self.pipeline(layout), self.times(layout).send_bytes
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
            plan = Plan(tp=layout.tp, pp=layout.pp, dp=layout.dp, order=layout.order)
            way = Way(plan, self.base.cluster.built, self._methods)
            return [Least(way, stage) for stage in range(layout.pp)]

        return self._once(("least", grid_of(layout)), stages)

    def _schedule_ends(
        self, layout: Layout, times: LeastPassTimes, least: Sequence[Mapping[Call, float]]
    ) -> list[float]:
        """When the last action of every stage is over, at the least."""

        def ends() -> list[float]:
            schedule, pipeline = schedule_of(layout.on(self.base)), self.pipeline(layout)
            assert pipeline is not None
            sends = [
                least[stage][Transfer(other, times.send_bytes)]
                for (here, _), (there, _) in pairwise(pipeline.route)
                for stage, other in ((here, there), (there, here))
                if here != there
            ]
            latency = 0.0 if self._sends_block else min(sends, default=0.0)
            timing = play(schedule, self._costs(layout, times, schedule, pipeline, least), latency)
            return [max(row, default=0.0) for row in timing.ends]

        return self._once(("ends", *layout[:9], layout.order), ends)

    def _costs(
        self, layout: Layout, times: LeastPassTimes, schedule: Schedule, pipeline: PipelineRoute,
        least: Sequence[Mapping[Call, float]],
    ) -> Callable[[Kind, int, int], float]:  # fmt: skip
        """Seconds of an action on its stage's main lane: the pass, the gather before it, a send that blocks."""
        slices = slice_times(pipeline, times)
        route = pipeline.route

        def seconds(kind: Kind, stage: int, chunk: int) -> float:
            number = route.index((stage, chunk))
            found = slices[number][kind]
            before = number - 1 if kind == "F" else number + 1
            after = number + 1 if kind == "F" else number - 1
            if kind == "W":
                return found
            if times.gathered and 0 <= before < len(route) and route[before][0] != stage:
                found += times.boundary[kind]
            if self._sends_block and 0 <= after < len(route) and route[after][0] != stage:
                found += least[stage][Transfer(route[after][0], times.send_bytes)]
            return found

        return seconds
