"""Bytes on a layout's fullest GPU: a lower bound in closed form, and the planned maximum of its schedule.

Before any backward begins, a microbatch has gone through all slices, so every stage holds the activations that the
forwards of its slices keep, and the model state; more where the schedule is known to do more forwards first: the floor.
"""

from __future__ import annotations

from functools import cache

from simcluster.model.recipes import state_bytes
from simcluster.planning.residency import block_residencies
from simcluster.scenario.fits import peak_bytes
from simcluster.scenario.memory_plan import recipe_of, shape_of
from simcluster.scenario.scenario import Scenario
from simcluster.schedules import SCHEDULES
from simcluster.studies.search.layout import Layout
from simcluster.studies.search.pass_times import layer_shape_of
from simcluster.studies.search.pipelines import StageCalls, StageContents, pipeline_route


class LayoutMemory:
    """Memory of one scenario's layouts in bytes; shared parts are computed once."""

    def __init__(self, base: Scenario) -> None:
        self._base = base
        self._recipe = recipe_of(base)
        self._known: dict[object, float] = {}
        self._calls: dict[object, StageCalls] = {}
        self._stages = cache(self._find_stages)
        self._most: dict[Layout, float] = {}

    def floor(self, layout: Layout) -> float:
        """Return a lower bound of the bytes on the fullest GPU: model state and first activations.

        Activations count only where none are offloaded to the host.
        """
        kept, many = self._kept_of_layer(layout), self._base.training.global_batch // (layout.dp * layout.micro_batch)
        return max(
            (
                self._state_bytes(layout, holdings)
                + kept * max(sum(slices), _live_slices(layout, stage, many) * min(slices))
                for stage, slices, holdings in self._stages(layout.schedule, layout.pp, layout.chunks)
            ),
            default=0.0,
        )

    def most(self, layout: Layout) -> float:
        """Return the planned bytes on the fullest GPU, including data that may wait between stages.

        InputError if the schedule cannot be made.
        """
        name = layout.unordered
        if name not in self._most:
            self._most[name] = peak_bytes(layout.on(self._base))
        return self._most[name]

    def _find_stages(self, schedule: str, pp: int, chunks: int) -> list[tuple[int, tuple[int, ...], StageContents]]:
        """Return each distinct kind of stage: its first stage, the layers of its slices, and its part of the model."""
        pipeline = pipeline_route(self._base, schedule, pp, chunks)
        found: dict[tuple[tuple[int, ...], StageContents], int] = {}
        for stage, numbers in enumerate(pipeline.slices if pipeline else ()):
            assert pipeline is not None
            found.setdefault((tuple(pipeline.counts[number] for number in numbers), pipeline.held[stage]), stage)
        return [(stage, *kind) for kind, stage in found.items()]

    def _state_bytes(self, layout: Layout, holdings: StageContents) -> float:
        name = layout.grid, layout.zero, holdings
        if name not in self._known:
            calls = self._calls.setdefault(name[:2], StageCalls(self._base, layout))
            own = calls.of(holdings)
            state = state_bytes(own.common, self._recipe, zero=layout.zero, dp=calls.shards)
            state += state_bytes(own.experts, self._recipe, zero=layout.zero, dp=calls.expert_shards)
            optimizer = state.optimizer if self._base.memory.offload.optimizer == "none" else 0.0
            self._known[name] = state.parameters + state.gradients + (optimizer - calls.spared(holdings))
        return self._known[name]

    def _kept_of_layer(self, layout: Layout) -> float:
        """Return the least bytes of activations that a layer's forward keeps per microbatch."""
        if self._base.memory.offload.activations:
            return 0.0
        name = layout.tp, layer_shape_of(layout)
        if name not in self._known:
            blocks = block_residencies(self._base.model, shape_of(layout.on(self._base)))
            layers = range(self._base.model.layers)
            self._known[name] = min(map(blocks.kept_bytes, layers))
        return self._known[name]


def _live_slices(layout: Layout, stage: int, many: int) -> int:
    """Return the number of slices' forwards before the first backward of a stage in its schedule."""
    first_forwards = SCHEDULES[layout.schedule].first_forwards
    return first_forwards(layout.pp, many, layout.chunks, stage) if first_forwards else 1
