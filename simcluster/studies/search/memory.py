"""Bytes that a layout holds on its fullest GPU: at least, in closed form, and at most, from its schedule.

Before any backward begins, a microbatch has gone through all slices, so every stage holds what the forwards of its
slices keep of it, beside the model state; more where the schedule is known to do more forwards first: the floor.
"""

from __future__ import annotations

from simcluster.model.recipes import state_bytes
from simcluster.planning.residency import LAYER, residencies
from simcluster.scenario.fits import held
from simcluster.scenario.memory_plan import recipe_of, shape_of
from simcluster.scenario.scenario import Scenario
from simcluster.schedules import SCHEDULES
from simcluster.studies.search.pass_times import grid_of, shape_of_layout
from simcluster.studies.search.pipelines import PipelineRoute, pipeline_of
from simcluster.studies.search.space import Layout
from simcluster.studies.search.stage_calls import StageCalls

Kind = tuple[int, tuple[int, ...], int, int, bool, bool]
"""The first stage of those that hold as much: layers of its slices, all of them, those with experts, has it the
model's ends."""


class LayoutMemory:
    """What layouts of one scenario hold; what they have in common is worked out once."""

    def __init__(self, base: Scenario) -> None:
        self._base = base
        self._recipe = recipe_of(base)
        self._kept: dict[object, float] = {}
        self._pipelines: dict[object, list[Kind] | None] = {}
        self._states: dict[object, float] = {}
        self._calls: dict[object, StageCalls] = {}
        self._most: dict[Layout, float] = {}

    def floor(self, layout: Layout) -> float:
        """Bytes at the least: model state, and one microbatch's activations where none goes to the host."""
        stages = self._stages(layout)
        if stages is None:
            return 0.0
        kept, many = self._kept_of_layer(layout), self._base.training.global_batch // (layout.dp * layout.micro_batch)
        return max(
            self._state(layout, layers, mixtures, first, last)
            + kept * max(sum(slices), _alive(layout, stage, many) * min(slices))
            for stage, slices, layers, mixtures, first, last in stages
        )

    def most(self, layout: Layout) -> float:
        """Bytes at the most: its schedule gone through, and what may wait between stages; InputError if it cannot be
        made."""
        name = layout._replace(order=())
        if name not in self._most:
            self._most[name] = held(layout.on(self._base))
        return self._most[name]

    def _stages(self, layout: Layout) -> list[Kind] | None:
        """What stages hold, each kind of stage once."""
        name = layout.schedule, layout.pp, layout.chunks
        if name not in self._pipelines:
            found = pipeline_of(self._base, *name)
            self._pipelines[name] = None if found is None else _kinds(found)
        return self._pipelines[name]

    def _state(self, layout: Layout, layers: int, mixtures: int, first: bool, last: bool) -> float:
        name = grid_of(layout), layout.zero, layers, mixtures, first, last
        if name not in self._states:
            calls = self._calls.setdefault((name[0], layout.zero), StageCalls(self._base, layout))
            held = calls.held(layers, mixtures, first=first, last=last)
            state = state_bytes(held.common, self._recipe, zero=layout.zero, dp=calls.shards)
            state += state_bytes(held.experts, self._recipe, zero=layout.zero, dp=calls.expert_shards)
            optimizer = state.optimizer if self._base.memory.offload.optimizer == "none" else 0.0
            optimizer -= calls.spared(layers, mixtures)
            self._states[name] = state.parameters + state.gradients + optimizer
        return self._states[name]

    def _kept_of_layer(self, layout: Layout) -> float:
        """What the forward of a layer keeps of a microbatch, at the least."""
        if self._base.memory.offload.activations:
            return 0.0
        name = layout.tp, shape_of_layout(layout)
        if name not in self._kept:
            blocks = residencies(self._base.model, shape_of(layout.on(self._base)))
            layers = range(self._base.model.layers)
            self._kept[name] = min(sum(blocks.of(block, layer).kept for block in LAYER) for layer in layers)
        return self._kept[name]


def _alive(layout: Layout, stage: int, many: int) -> int:
    """How many slices' forwards a stage has done when its first backward begins, by the schedule's own rule."""
    first_forwards = SCHEDULES[layout.schedule].first_forwards
    return first_forwards(layout.pp, many, layout.chunks, stage) if first_forwards else 1


def _kinds(pipeline: PipelineRoute) -> list[Kind]:
    found: dict[tuple[tuple[int, ...], int, int, bool, bool], int] = {}
    for stage, (slices, layers, mixtures, first, last) in enumerate(pipeline.held):
        counts = tuple(pipeline.counts[number] for number in slices)
        found.setdefault((counts, layers, mixtures, first, last), stage)
    return [(stage, *kept) for kept, stage in found.items()]
