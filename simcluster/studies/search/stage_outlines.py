"""Outlines of a layout's stages before its schedule is made: layers, gradient reductions and parameter gathers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

from simcluster.model.layers import lm_head_parameters_per_tp_rank
from simcluster.planning.job import ModelSlices
from simcluster.planning.owned_parameters import (
    OwnedParameters,
    layers_with_prediction,
    parameters_of_ends,
    parameters_of_layers,
)
from simcluster.planning.work_kinds import Collective
from simcluster.scenario.job_conversion import data_parallel_options_of
from simcluster.scenario.memory_plan import recipe_of
from simcluster.scenario.scenario import Scenario
from simcluster.schedules import SCHEDULES, Schedule
from simcluster.schedules.actions import Route
from simcluster.studies.search.free_link_times import Call
from simcluster.studies.search.layout import Layout

Collectives = tuple[Collective, ...]


class StageContents(NamedTuple):
    """A stage's part of the model: its layers by type, and whether the first or last slice is on it."""

    layers_by_type: tuple[int, ...]
    has_first_slice: bool
    has_last_slice: bool


class StageOutline(NamedTuple):
    """Outline of a stage's step: seconds of fill, passes and drain, and the stage's part of the model."""

    fill_seconds: float
    pass_seconds: float
    drain_seconds: float
    contents: StageContents

    @property
    def passes_end(self) -> float:
        """Time (s) at which the stage's passes end."""
        return self.fill_seconds + self.pass_seconds


@dataclass(frozen=True)
class PipelineRoute:
    """Order in which microbatches go through the stages, and the layers of each model slice."""

    route: Route
    layers_per_slice: tuple[int, ...]
    layer_types: tuple[int, ...] = ()
    """Number of each layer's type, in the order of ``Model.count_layer_types``; empty if all are equal."""

    @cached_property
    def layer_ranges(self) -> list[range]:
        """Range of layer numbers of each model slice."""
        return [range(first, last) for first, last in pairwise(accumulate(self.layers_per_slice, initial=0))]

    @cached_property
    def slices_by_stage(self) -> list[tuple[int, ...]]:
        """Indices of the model slices on each stage."""
        found: list[list[int]] = [[] for _ in range(1 + max(stage for stage, _ in self.route))]
        for number, (stage, _) in enumerate(self.route):
            found[stage].append(number)
        return [*map(tuple, found)]

    @cached_property
    def contents_by_stage(self) -> list[StageContents]:
        """Each stage's part of the model."""
        parts = [[self.slice_contents(number) for number in numbers] for numbers in self.slices_by_stage]
        return [
            StageContents(
                tuple(map(sum, zip(*(part.layers_by_type for part in own), strict=True))),
                any(part.has_first_slice for part in own), any(part.has_last_slice for part in own),
            )
            for own in parts
        ]  # fmt: skip

    def slice_contents(self, number: int) -> StageContents:
        """Return the layers of one model slice and whether it is the first or the last."""
        counts = Counter(self.layer_types[layer] if self.layer_types else 0 for layer in self.layer_ranges[number])
        by_type = tuple(counts[each] for each in range(max(self.layer_types, default=0) + 1))
        return StageContents(by_type, number == 0, number == len(self.layers_per_slice) - 1)


def find_pipeline_route(base: Scenario, schedule: str, pp: int, chunks: int) -> PipelineRoute | None:
    """Return a pipeline's route and split of layers; None if either depends on simulated times.

    The schedule's name may not determine the route, and layers may be cut by the times of the run.
    """
    route_of, wanted, layers = SCHEDULES[schedule].route, base.pipeline.layers_per_stage, base.model.layers
    numbers = {each: number for number, each in enumerate(base.model.count_layer_types())}
    types = tuple(numbers[base.model.layer_type(layer)] for layer in range(layers)) if len(numbers) > 1 else ()
    if route_of is None or wanted == "auto":
        return None
    route = route_of(pp, chunks)
    size = len(route)
    if wanted == "even":
        return None if layers % size else PipelineRoute(route, ModelSlices.split_evenly(layers, size).counts, types)
    if len(wanted) == size:
        return PipelineRoute(route, wanted, types)
    if len(wanted) != pp:
        return None
    stub = Schedule(schedule, ((),) * pp, 1, size // pp, (route,), (0,))
    return PipelineRoute(route, ModelSlices.from_stage_layers(wanted, stub).counts, types)


Turns = Mapping[tuple[int, int], int]
"""How often each stage turns from a forward to a backward of the same chunk in a step, by stage and chunk."""


def count_turns_to_backward(schedule: Schedule) -> Turns:
    """Count how often each stage runs a backward right after a forward of the same chunk, by stage and chunk."""
    found = {(stage, chunk): 0 for stage in range(len(schedule.rows)) for chunk in range(schedule.num_chunks)}
    for stage, row in enumerate(schedule.rows):
        passes = [action for action in row if action.kind != "W"]
        for action, following in pairwise(passes):
            if action.kind == "F" != following.kind and action.chunk == following.chunk:
                found[stage, action.chunk] += 1
    return found


class StageDataParallelism:
    """Parameters, optimizer times and dp collectives of a stage's ranks, for one rank grid and ZeRO stage.

    Experts on ep ranks are held by fewer ranks than the rest of a layer is (``owned_parameters``).
    """

    def __init__(self, base: Scenario, layout: Layout) -> None:
        self.base, self.zero, self.plan = base, layout.zero, layout.rank_grid
        self.data = data_parallel_options_of(layout.apply_to(base), base.cluster.device, self.plan, recipe_of(base))
        self.shards = (layout.zero == 3 and base.fsdp.shard_group) or self.plan.replicas
        self.expert_shards = max(1, self.plan.expert_replicas * self.shards // self.plan.replicas)
        self._first = [layer for layer, _ in base.model.count_layer_types().values()]
        self._updates: dict[Hashable, tuple[float, float]] = {}
        self._parameters = [parameters_of_layers(base.model, self.plan, [layer]) for layer in self._first]

    def owned_parameters(self, held: StageContents) -> OwnedParameters:
        """Return the number of parameters on one rank of a stage, given the stage's part of the model."""
        first, last = held.has_first_slice, held.has_last_slice
        found = OwnedParameters() + parameters_of_ends(self.base.model, self.plan.tp, first=first, last=last)
        found += parameters_of_layers(self.base.model, self.plan, self.base.model.encoder_layers if first else ())
        for own, count in zip(self._parameters, held.layers_by_type, strict=False):
            found = found + own * count if count else found
        return found

    def saved_optimizer_bytes(self, held: StageContents) -> float:
        """Return the most bytes of Adam state that a rank saves if an optimizer such as Muon updates matrices."""
        optimizer, shards = self.data.optimizer, (self.shards, self.expert_shards) if self.zero else (1, 1)
        found, counts = 0.0, [*zip(self._first, held.layers_by_type, strict=False)]
        encoder = self.base.model.encoder_layers if held.has_first_slice else ()
        counts += [
            (each, 1) for each in layers_with_prediction(self.base.model, self.plan, encoder, last=held.has_last_slice)
        ]
        for layer, count in counts:
            if count and optimizer:
                own = optimizer.unneeded_adam_state([layer])
                found += count * (own.common / shards[0] + own.experts / shards[1])
        return found

    def norm_and_optimizer_seconds(self, held: StageContents) -> tuple[float, float]:
        """Return the times (s) of the gradient norm and of the optimizer on one rank of a stage."""
        if held not in self._updates:
            own, on_gpu = self.owned_parameters(held), self.base.memory.offload.optimizer == "none"
            updated = own.common / self.shards + own.experts / self.expert_shards if self.zero else own.total
            optimizer = self.data.optimizer_seconds(updated) if on_gpu else 0.0
            self._updates[held] = self.data.norm_seconds(updated), optimizer
        return self._updates[held]

    def blocking_collectives(self, held: StageContents) -> tuple[Collectives, Collectives]:
        """Return a stage's blocking collectives: gradient reductions before the optimizer, gathers after it."""
        overlap, data, own = self.base.overlap, self.data, self.owned_parameters(held)
        reduced = gathered = ()  # type: Collectives
        if self.zero < 2 and not overlap.grad_reduce:
            reduced = self._make_collectives("reduce_scatter" if self.zero else "all_reduce", own, data.gradient_bytes)
        if self.zero in (1, 2) and not overlap.param_gather:
            gathered = self._make_collectives("all_gather", own, data.parameter_bytes)
        model = self.base.model
        two = held.has_first_slice != held.has_last_slice  # two stages sum its gradients
        if model.tied_embeddings and two and not model.freezes("embedding"):
            share = self.shards if self.zero == 3 else 1
            size = lm_head_parameters_per_tp_rank(model, self.plan.tp) * data.gradient_bytes
            reduced += (Collective("all_reduce", "embedding", size / share),)
        return reduced, gathered

    def dp_communication_seconds(
        self, pipeline: PipelineRoute, number: int, many: int, least: Mapping[Call, float],
        turns: Turns | None = None,
    ) -> tuple[float, float]:  # fmt: skip
        """Return the time (s) that dp communication blocks a stage's passes, and the busy time (s) of its dp streams.

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
            own = [self._reduced_parameters(pipeline, each) for each in pipeline.slices_by_stage[number]]
            calls = [one for held in own for one in self._make_collectives("reduce_scatter", held, data.gradient_bytes)]
            return times * sum(least[call] for call in calls), 0.0
        if fsdp.shard_group or fsdp.regather_group:
            return 0.0, 0.0
        kinds = self._parameters  # of a unit, those of which least is sent
        unit, whole_unit = (
            OwnedParameters(min(kind.common for kind in each), min(kind.experts for kind in each)) * fsdp.unit_layers
            for each in (kinds, [kind.all_parameters for kind in kinds])
        )
        gather = sum(least[call] for call in self._make_collectives("all_gather", whole_unit, data.parameter_bytes))
        reduction = sum(least[call] for call in self._make_collectives("reduce_scatter", unit, data.gradient_bytes))
        stays = (fsdp.prefetch if overlap.param_gather else 0) + 1
        again = whole = 0
        for each in pipeline.slices_by_stage[number]:
            units = pipeline.layers_per_slice[each] // fsdp.unit_layers
            whole += units
            again += 2 * many * units - min(stays, units) * (many if turns is None else turns[pipeline.route[each]])
        gathers = again * gather if fsdp.reshard_after_forward else 0.0
        reductions = times * whole * reduction
        combined = max if fsdp.lanes == "two" else sum
        lanes = (gathers, overlap.param_gather), (reductions, overlap.grad_reduce)
        return combined([0.0, *(time for time, hidden in lanes if not hidden)]), combined([gathers, reductions])

    def _reduced_parameters(self, pipeline: PipelineRoute, number: int) -> OwnedParameters:
        """Return the number of parameters of a model slice whose gradients are reduced."""
        held = pipeline.slice_contents(number)
        own = self.owned_parameters(held)
        both = pipeline.route[0][0] == pipeline.route[-1][0]  # then one copy of a tied embedding serves both ends
        frozen, tied = self.base.model.freezes("lm_head"), both and self.base.model.tied_embeddings
        if held.has_last_slice and not held.has_first_slice and tied and not frozen:
            return OwnedParameters(
                own.common - lm_head_parameters_per_tp_rank(self.base.model, self.plan.tp), own.experts
            )
        return own

    def _make_collectives(self, kind: str, held: OwnedParameters, each: float) -> Collectives:
        """Return the collectives of this kind, in series, over the ranks that hold the same parameters."""
        return tuple(Collective(kind, axis, size) for axis, size in held.collective_calls(self.plan, each))
