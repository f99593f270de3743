"""Stages of a layout before its schedule is made: their layers, dp reductions and gathers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from simcluster.model.layers import lm_head_parameters_per_tp_rank, stage_parameters_per_tp_rank
from simcluster.planning.job import DataParallel, Slices
from simcluster.planning.owned_parameters import OwnedParameters, parameters_of_layers
from simcluster.planning.works import Collective
from simcluster.scenario.job import data_parallel_of
from simcluster.scenario.memory_plan import recipe_of
from simcluster.scenario.scenario import Scenario
from simcluster.schedules import SCHEDULES, Schedule
from simcluster.schedules.actions import Route
from simcluster.studies.search.free_links import Call
from simcluster.studies.search.layout import Layout

Collectives = tuple[Collective, ...]


class StageContents(NamedTuple):
    """A stage's part of the model: its number of layers, those with experts, and whether it has the model's ends."""

    layers: int
    mixtures: int
    first: bool
    last: bool


class Stage(NamedTuple):
    """Outline of a stage's step: seconds before, during and after its passes, and its part of the model."""

    fill: float
    work: float
    drain: float
    held: StageContents

    @property
    def end(self) -> float:
        """End of the stage's passes (s)."""
        return self.fill + self.work


@dataclass(frozen=True)
class PipelineRoute:
    """A route through the stages, the layers of each slice, and which layers have experts (empty: none)."""

    route: Route
    counts: tuple[int, ...]
    mixtures: tuple[bool, ...] = ()

    @cached_property
    def layers(self) -> list[range]:
        """Layer numbers of each slice."""
        firsts = [sum(self.counts[:number]) for number in range(len(self.counts))]
        return [range(first, first + count) for first, count in zip(firsts, self.counts, strict=True)]

    @cached_property
    def slices(self) -> list[tuple[int, ...]]:
        """Slice numbers of each stage."""
        found: list[list[int]] = [[] for _ in range(1 + max(stage for stage, _ in self.route))]
        for number, (stage, _) in enumerate(self.route):
            found[stage].append(number)
        return [*map(tuple, found)]

    @cached_property
    def held(self) -> list[StageContents]:
        """Each stage's part of the model."""
        parts = [[self.of_slice(number) for number in numbers] for numbers in self.slices]
        return [
            StageContents(
                sum(part.layers for part in own), sum(part.mixtures for part in own),
                any(part.first for part in own), any(part.last for part in own),
            )
            for own in parts
        ]  # fmt: skip

    def of_slice(self, number: int) -> StageContents:
        """Return the part of the model in one slice."""
        mixtures = sum(self.mixtures[layer] for layer in self.layers[number]) if self.mixtures else 0
        return StageContents(self.counts[number], mixtures, number == 0, number == len(self.counts) - 1)


def pipeline_route(base: Scenario, schedule: str, pp: int, chunks: int) -> PipelineRoute | None:
    """Return the route and cut of a pipeline; None if they are not known before the run.

    The schedule's name may not determine the route, and layers may be cut by the times of the run.
    """
    route_of, wanted, layers = SCHEDULES[schedule].route, base.pipeline.layers_per_stage, base.model.layers
    mixtures = tuple(map(base.model.has_experts, range(layers))) if base.model.moe else ()
    if route_of is None or wanted == "auto":
        return None
    route = route_of(pp, chunks)
    if wanted == "even":
        return None if layers % len(route) else PipelineRoute(route, Slices.even(layers, len(route)).counts, mixtures)
    if len(wanted) == len(route):
        return PipelineRoute(route, wanted, mixtures)
    if len(wanted) != pp:
        return None
    stub = Schedule(schedule, ((),) * pp, 1, len(route) // pp, (route,), (0,))
    return PipelineRoute(route, Slices.of_stages(wanted, stub).counts, mixtures)


Turns = Mapping[tuple[int, int], int]
"""How often each stage turns from a forward to a backward of the same chunk in a step, by stage and chunk."""


def count_turns(schedule: Schedule) -> Turns:
    """Return how often each stage of a schedule turns from a forward to a backward of the same chunk."""
    found = {(stage, chunk): 0 for stage in range(len(schedule.rows)) for chunk in range(schedule.num_chunks)}
    for stage, row in enumerate(schedule.rows):
        passes = [action for action in row if action.kind != "W"]
        for action, following in pairwise(passes):
            if action.kind == "F" != following.kind and action.chunk == following.chunk:
                found[stage, action.chunk] += 1
    return found


class StageCalls:
    """Parameters and dp collectives of a stage's ranks, for one rank grid and ZeRO stage.

    Experts on ep ranks are held by fewer ranks than the rest of a layer is (``owned_parameters``).
    """

    def __init__(self, base: Scenario, layout: Layout) -> None:
        self.base, self.zero, self.plan = base, layout.zero, layout.plan
        self.data: DataParallel = data_parallel_of(layout.on(base), base.cluster.device, self.plan, recipe_of(base))
        self.shards = (layout.zero == 3 and base.fsdp.shard_group) or self.plan.replicas
        self.expert_shards = max(1, self.plan.expert_replicas * self.shards // self.plan.replicas)
        mixed = [base.model.has_experts(layer) for layer in range(base.model.layers)]
        self._first = {kind: mixed.index(kind) for kind in dict.fromkeys(mixed)}
        self._updates: dict[Hashable, tuple[float, float]] = {}
        first = self._first.items()
        self._kinds = {kind: parameters_of_layers(base.model, self.plan, [layer]) for kind, layer in first}

    def of(self, held: StageContents) -> OwnedParameters:
        """Return the parameters that a rank holds of its stage's part of the model."""
        ends = stage_parameters_per_tp_rank(self.base.model, self.plan.tp, layers=0, first=held.first, last=held.last)
        common, experts = float(ends), 0.0
        for kind, count in ((False, held.layers - held.mixtures), (True, held.mixtures)):
            if count:
                common += count * self._kinds[kind].common
                experts += count * self._kinds[kind].experts
        return OwnedParameters(common, experts)

    def spared(self, held: StageContents) -> float:
        """Return the most bytes of Adam state that a rank saves because other optimizers update its matrices."""
        optimizer, shards = self.data.optimizer, (self.shards, self.expert_shards) if self.zero else (1, 1)
        found = 0.0
        for kind, count in ((False, held.layers - held.mixtures), (True, held.mixtures)):
            if count and optimizer:
                own = optimizer.unneeded([self._first[kind]])
                found += count * (own.common / shards[0] + own.experts / shards[1])
        return found

    def update(self, held: StageContents) -> tuple[float, float]:
        """Return the times (s) of gradient norm and optimizer of a stage's ranks."""
        if held not in self._updates:
            own, on_gpu = self.of(held), self.base.memory.offload.optimizer == "none"
            updated = own.common / self.shards + own.experts / self.expert_shards if self.zero else own.total
            optimizer = self.data.optimizer_seconds(updated) if on_gpu else 0.0
            self._updates[held] = self.data.norm_seconds(updated), optimizer
        return self._updates[held]

    def tail(self, held: StageContents) -> tuple[Collectives, Collectives]:
        """Return a stage's blocking collectives: reductions after the pipeline, and gathers after the optimizer."""
        overlap, data, own = self.base.overlap, self.data, self.of(held)
        reduced = gathered = ()  # type: Collectives
        if self.zero < 2 and not overlap.grad_reduce:
            reduced = self._calls("reduce_scatter" if self.zero else "all_reduce", own, data.gradient_bytes)
        if self.zero in (1, 2) and not overlap.param_gather:
            gathered = self._calls("all_gather", own, data.parameter_bytes)
        model = self.base.model
        if model.tied_embeddings and held.first != held.last:  # two stages sum the gradients of the embedding
            share = self.shards if self.zero == 3 else 1
            size = lm_head_parameters_per_tp_rank(model, self.plan.tp) * data.gradient_bytes
            reduced += (Collective("all_reduce", "embedding", size / share),)
        return reduced, gathered

    def over_dp(
        self, pipeline: PipelineRoute, number: int, many: int, least: Mapping[Call, float],
        turns: Turns | None = None,
    ) -> tuple[float, float]:  # fmt: skip
        """Return the seconds by which dp communication blocks a stage's passes, and the busy time of its dp lanes.

        Of a step of ``many`` microbatches. Without overlap a use of a unit waits for its gather, which begins after the
        use before it, and for the last reduction; so all of them are in series. Not counted are units that stay from
        forward to backward (as many as are there at once), and partial units. Units can stay where a schedule ``turns``
        from forward to backward of a chunk, or anywhere if that is not known.
        """
        fsdp, overlap, data = self.base.fsdp, self.base.overlap, self.data
        times = many if fsdp.sync_every_microbatch else 1
        if self.plan.replicas == 1 or self.zero < 2 or (self.zero == 2 and overlap.grad_reduce):
            return 0.0, 0.0
        if self.zero == 2:
            own = [self._reduced_parameters(pipeline, each) for each in pipeline.slices[number]]
            calls = [call for held in own for call in self._calls("reduce_scatter", held, data.gradient_bytes)]
            return times * sum(least[call] for call in calls), 0.0
        if fsdp.shard_group:
            return 0.0, 0.0
        kinds = self._kinds.values()  # of a unit, those of which least is sent
        unit = OwnedParameters(*(fsdp.unit_layers * min(getattr(kind, part) for kind in kinds)
                                 for part in ("common", "experts")))  # fmt: skip
        gather = sum(least[call] for call in self._calls("all_gather", unit, data.parameter_bytes))
        reduction = sum(least[call] for call in self._calls("reduce_scatter", unit, data.gradient_bytes))
        stays = (fsdp.prefetch if overlap.param_gather else 0) + 1
        again = whole = 0
        for each in pipeline.slices[number]:
            units = pipeline.counts[each] // fsdp.unit_layers
            whole += units
            again += 2 * many * units - min(stays, units) * (many if turns is None else turns[pipeline.route[each]])
        gathers = again * gather if fsdp.reshard_after_forward else 0.0
        reductions = times * whole * reduction
        combined = max if fsdp.lanes == "two" else sum
        lanes = (gathers, overlap.param_gather), (reductions, overlap.grad_reduce)
        return combined([0.0, *(time for time, hidden in lanes if not hidden)]), combined([gathers, reductions])

    def _reduced_parameters(self, pipeline: PipelineRoute, number: int) -> OwnedParameters:
        """Return the parameters of a slice whose gradients are reduced."""
        held = pipeline.of_slice(number)
        own = self.of(held)
        both = pipeline.route[0][0] == pipeline.route[-1][0]
        if held.last and not held.first and both and self.base.model.tied_embeddings:  # one copy serves both ends
            return OwnedParameters(
                own.common - lm_head_parameters_per_tp_rank(self.base.model, self.plan.tp), own.experts
            )
        return own

    def _calls(self, kind: str, held: OwnedParameters, each: float) -> Collectives:
        """Return the collectives over the ranks that hold the same parameters, in series."""
        return tuple(Collective(kind, axis, size) for axis, size in held.calls(self.plan, each))
