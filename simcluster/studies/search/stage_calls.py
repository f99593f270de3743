"""What the ranks of a stage hold of the model, and what they reduce and gather among those that hold the same.

Experts on ep ranks are held by fewer ranks than the rest of a layer is (``owned_parameters``).  Pure.
"""

from __future__ import annotations

from collections.abc import Hashable

from simcluster.model.shards import lm_head_parameters_per_tp_rank, stage_parameters_per_tp_rank
from simcluster.planning.job import DataParallel
from simcluster.planning.owned_parameters import OwnedParameters, of_layers
from simcluster.planning.works import Collective
from simcluster.scenario.job import data_parallel_of
from simcluster.scenario.memory_plan import recipe_of
from simcluster.scenario.scenario import Scenario
from simcluster.studies.search.pass_times import plan_of_layout
from simcluster.studies.search.pipelines import PipelineRoute, Stage, StageHoldings
from simcluster.studies.search.space import Layout

Calls = tuple[Collective, ...]


class StageCalls:
    """Of the stages of one rank grid under one stage of ZeRO: parameters of a rank, and collectives over dp."""

    def __init__(self, base: Scenario, layout: Layout) -> None:
        self.base, self.zero = base, layout.zero
        self.plan = plan_of_layout(layout)
        self.data: DataParallel = data_parallel_of(
            layout.on(base), base.cluster.device, self.plan, recipe_of(base)
        )  # fmt: skip
        self.shards = (layout.zero == 3 and base.fsdp.shard_group) or self.plan.replicas
        self.expert_shards = max(1, self.plan.expert_replicas * self.shards // self.plan.replicas)
        mixed = [base.model.has_experts(layer) for layer in range(base.model.layers)]
        self._first = {kind: mixed.index(kind) for kind in dict.fromkeys(mixed)}
        self._updates: dict[Hashable, tuple[float, float]] = {}
        self._kinds = {kind: of_layers(base.model, self.plan, [layer]) for kind, layer in self._first.items()}

    def held(self, layers: int, mixtures: int, *, first: bool, last: bool) -> OwnedParameters:
        """By a rank of a stage with so many layers, some of them mixtures of experts, and these ends of the model."""
        ends = stage_parameters_per_tp_rank(self.base.model, self.plan.tp, layers=0, first=first, last=last)
        common, experts = float(ends), 0.0
        for kind, count in ((False, layers - mixtures), (True, mixtures)):
            if count:
                common += count * self._kinds[kind].common
                experts += count * self._kinds[kind].experts
        return OwnedParameters(common, experts)

    def of(self, stage: Stage | StageHoldings) -> OwnedParameters:
        """By a rank of a stage."""
        return self.held(stage.layers, stage.mixtures, first=stage.first, last=stage.last)

    def spared(self, layers: int, mixtures: int) -> float:
        """Bytes of optimizer state at the most that a rank's matrices do without, where one works on whole ones."""
        matrices, shards = self.data.matrices, (self.shards, self.expert_shards) if self.zero else (1, 1)
        found = 0.0
        for kind, count in ((False, layers - mixtures), (True, mixtures)) if matrices else ():
            if count and matrices:
                held = matrices.elements([self._first[kind]])
                found += count * matrices.moment * (held.common / shards[0] + held.experts / shards[1])
        return found

    def updated(self, held: OwnedParameters) -> float:
        """Of parameters that a rank holds those whose optimizer's state it has."""
        if self.zero == 0:
            return held.total
        return held.common / self.shards + held.experts / self.expert_shards

    def update(self, stage: Stage) -> tuple[float, float]:
        """Seconds of gradient norm and optimizer of a stage's ranks."""
        if stage[3:] not in self._updates:
            parameters, on_gpu = self.updated(self.of(stage)), self.base.memory.offload.optimizer == "none"
            optimizer = self.data.optimizer_seconds(parameters) if on_gpu else 0.0
            self._updates[stage[3:]] = self.data.norm_seconds(parameters), optimizer
        return self._updates[stage[3:]]

    def behind(self, held: OwnedParameters) -> tuple[Calls, Calls]:
        """What is reduced behind the pipeline and gathered behind the optimizer, each one after the other, if it blocks
        there."""
        overlap, data = self.base.overlap, self.data
        reduced = gathered = ()  # type: Calls
        if self.zero < 2 and not overlap.grad_reduce:
            kind = "reduce_scatter" if self.zero else "all_reduce"
            reduced = self.over(kind, held, data.gradient_bytes)
        if self.zero in (1, 2) and not overlap.param_gather:
            gathered = self.over("all_gather", held, data.parameter_bytes)
        return reduced, gathered

    def tied(self, stage: Stage) -> Calls:
        """The sum of the gradients of tied embeddings that are on two stages, for one of these."""
        model = self.base.model
        if not model.tied_embeddings or stage.first == stage.last:
            return ()
        share = self.shards if self.zero == 3 else 1
        size = lm_head_parameters_per_tp_rank(model, self.plan.tp) * self.data.gradient_bytes
        return (Collective("all_reduce", "embedding", size / share),)

    def each_slice(self, pipeline: PipelineRoute, number: int) -> Calls:
        """Under ZeRO 2 the reductions of a slice's gradients, if they block, of all slices of a stage by its number."""
        if self.plan.replicas == 1 or self.zero != 2 or self.base.overlap.grad_reduce:
            return ()
        found: Calls = ()
        for each in pipeline.held[number].slices:
            held = self._of_slice(pipeline, each)
            found += self.over("reduce_scatter", held, self.data.gradient_bytes)
        return found

    def each_unit(self) -> tuple[Calls, Calls]:
        """Under ZeRO 3 the gather and the reduction of a full unit of layers, of the kind of which least is sent."""
        if self.plan.replicas == 1 or self.zero != 3 or self.base.fsdp.shard_group:
            return (), ()
        size = float(self.base.fsdp.unit_layers)
        held = OwnedParameters(
            size * min(kind.common for kind in self._kinds.values()),
            size * min(kind.experts for kind in self._kinds.values()),
        )
        data = self.data
        return self.over("all_gather", held, data.parameter_bytes), self.over(
            "reduce_scatter", held, data.gradient_bytes
        )

    def _of_slice(self, pipeline: PipelineRoute, number: int) -> OwnedParameters:
        """Parameters of a slice, as they are reduced."""
        first, last = number == 0, number == len(pipeline.counts) - 1
        held = self.held(pipeline.counts[number], pipeline.mixtures_of(number), first=first, last=last)
        both = pipeline.route[0][0] == pipeline.route[-1][0]
        if last and not first and both and self.base.model.tied_embeddings:  # one copy serves both ends
            head = lm_head_parameters_per_tp_rank(self.base.model, self.plan.tp)
            return OwnedParameters(held.common - head, held.experts)
        return held

    def over(self, kind: str, held: OwnedParameters, each: float) -> Calls:
        """Collectives over those who hold the same, one after the other."""
        return tuple(Collective(kind, axis, size) for axis, size in held.calls(self.plan, each))
