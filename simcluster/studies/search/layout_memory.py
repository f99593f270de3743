"""Memory that a layout needs on its fullest GPU: a lower bound in closed form, and the planned bytes.

Before any backward begins, a microbatch has gone through all slices, so every stage holds the activations that the
forwards of its slices keep, and the model state; more where the schedule is known to do more forwards first: the floor.
"""

from __future__ import annotations

from functools import cache

from simcluster.planning.block_memory import block_memory_table
from simcluster.scenario.memory_plan import recipe_of, shape_of
from simcluster.scenario.memory_remedies import peak_memory_bytes
from simcluster.scenario.scenario import Scenario
from simcluster.schedules import SCHEDULES
from simcluster.studies.search.layout import Layout
from simcluster.studies.search.pass_times import layer_pass_settings
from simcluster.studies.search.stage_outlines import StageContents, StageDataParallelism, find_pipeline_route


class LayoutMemory:
    """Calculator of the memory (bytes per GPU) of a scenario's layouts; layouts share intermediate results."""

    def __init__(self, base: Scenario) -> None:
        self._base = base
        self._recipe = recipe_of(base)
        self._known: dict[object, float] = {}
        self._calls: dict[object, StageDataParallelism] = {}
        self._stages = cache(self._find_distinct_stages)
        self._most: dict[Layout, float] = {}

    def least_bytes(self, layout: Layout) -> float:
        """Return a lower bound of the fullest GPU's bytes: model state and the activations of the first forwards.

        Activations count only where none are offloaded to the host.
        """
        kept = self._least_kept_bytes(layout)
        many = self._base.training.global_batch // (layout.dp * layout.micro_batch)
        return max(
            (
                self._state_bytes(layout, holdings)
                + kept * max(sum(slices), _count_live_slices(layout, stage, many) * min(slices))
                for stage, slices, holdings in self._stages(layout.schedule, layout.pp, layout.chunks)
            ),
            default=0.0,
        )

    def planned_bytes(self, layout: Layout) -> float:
        """Return the planned bytes of the fullest GPU, including data that waits between stages.

        InputError if the schedule cannot be made.
        """
        name = layout.without_rank_order
        if name not in self._most:
            self._most[name] = peak_memory_bytes(layout.apply_to(self._base))
        return self._most[name]

    def _find_distinct_stages(
        self, schedule: str, pp: int, chunks: int
    ) -> list[tuple[int, tuple[int, ...], StageContents]]:
        """Return each distinct stage: its first index, the layers of its slices, and its part of the model."""
        pipeline = find_pipeline_route(self._base, schedule, pp, chunks)
        found: dict[tuple[tuple[int, ...], StageContents], int] = {}
        for stage, numbers in enumerate(pipeline.slices_by_stage if pipeline else ()):
            assert pipeline is not None
            layers = tuple(pipeline.layers_per_slice[number] for number in numbers)
            found.setdefault((layers, pipeline.contents_by_stage[stage]), stage)
        return [(stage, *kind) for kind, stage in found.items()]

    def _state_bytes(self, layout: Layout, holdings: StageContents) -> float:
        name = layout.communication_key, layout.zero, holdings
        if name not in self._known:
            calls = self._calls.setdefault(name[:2], StageDataParallelism(self._base, layout))
            own = calls.owned_parameters(holdings)
            shards, expert_shards = calls.shards, calls.expert_shards
            state = own.state_bytes(
                self._base.model, self._recipe, zero=layout.zero, shards=shards, expert_shards=expert_shards
            )
            optimizer = state.optimizer if self._base.memory.offload.optimizer == "none" else 0.0
            self._known[name] = state.parameters + state.gradients + (optimizer - calls.saved_optimizer_bytes(holdings))
        return self._known[name]

    def _least_kept_bytes(self, layout: Layout) -> float:
        """Return the least activation bytes that the forward of a layer keeps for its backward, per microbatch."""
        if self._base.memory.offload.activations:
            return 0.0
        name = layout.tp, layer_pass_settings(layout)
        if name not in self._known:
            blocks = block_memory_table(self._base.model, shape_of(layout.apply_to(self._base)))
            layers = range(self._base.model.layers)
            self._known[name] = min(map(blocks.kept_bytes, layers))
        return self._known[name]


def _count_live_slices(layout: Layout, stage: int, microbatches: int) -> int:
    """Return the number of slice forwards that a stage runs before its first backward."""
    first_forwards = SCHEDULES[layout.schedule].first_forwards
    return first_forwards(layout.pp, microbatches, layout.chunks, stage) if first_forwards else 1
