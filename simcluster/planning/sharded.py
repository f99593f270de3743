"""ZeRO 3 (FSDP): parameters sharded over dp, gathered unit by unit before use, gradients reduce-scattered.

A use of a unit (``sharded_units``) waits for its all-gather, unless the unit is still there. The gather may begin when
the use ``prefetch + 1`` before it is over, also of another pass, so that at most ``prefetch + 1`` units are unsharded
(``Sharding.reshard``). Gradients are reduce-scattered after each stretch of B (or W); a stretch waits until the
reduction of the last but one is over, as in FSDP2, so that gradients of at most two units are unsharded.

With one lane, gathers and reductions wait for each other in the order in which they are issued: the gather of the unit
``prefetch`` ahead before a stretch, the reduction of its gradients after it (PyTorch's BACKWARD_PRE). With two they
share the links instead. HSDP: sharded over ``Plan.shard_size`` ranks, whose shards of the gradients are then summed
over the ranks that have the same shard. Experts of a mixture that only some ranks hold are sharded over those alone
("edp", ``owned_parameters``), with HSDP over those in a shard group: a unit is then gathered and reduced in two calls,
one after the other (PyTorch FSDP2 on a separate mesh for experts, as torchtitan has it: "efsdp"). Without
``overlap_gather`` nothing is prefetched; without ``overlap_reduce`` computation waits for every reduction.

The root unit's gradients (tied embeddings on one stage) are reduced when the embedding's are complete: in each
microbatch, or, where embedding and LM head are in different chunks, in the last.

Where each matrix is gathered separately (``Sharding.by_matrix``) the host makes a list of pieces before every call.
PyTorch FSDP, arXiv:2304.11277; torch.distributed.fsdp (limit_all_gathers, no_sync, HYBRID_SHARD); MODELLING.md F.2.
Pure.
"""

from __future__ import annotations

from simcluster.planning.job import Job
from simcluster.planning.ops import MAIN, Item, MemoryChange, Need, Op, Segment
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.replicas import ActionPart, add_step_end
from simcluster.planning.sharded_units import UnitPart, fsdp_units, prefetch_window, unit_parts, unit_uses
from simcluster.planning.works import Compute
from simcluster.schedules import Action

Key = tuple[object, ...]


class FsdpBuilder:
    """Builder of one stage's ZeRO 3 gathers and reductions (the counterpart of ``replicas.ReplicaBuilder``)."""

    def __init__(self, job: Job, lanes: ProgramBuilder) -> None:
        self._job = job
        self._data = job.data_parallel
        self._lanes = lanes
        self._stage = lanes.stage
        self._shards = job.plan.shard_size
        self._alone = job.replicas == 1
        self._units = fsdp_units(job, self._stage)
        self._uses = unit_uses(job, self._stage, self._units)
        self._window = prefetch_window(job)
        row = job.schedule.rows[self._stage]
        gradients = [action for action in row if action.kind in ("B", "W")]
        self._first_gradient = {action.chunk: action for action in reversed(gradients)}
        self._last_gradient = {action.chunk: action for action in gradients}
        self._first_use: dict[Action, int] = {}
        uses = 0
        for action in row:
            self._first_use[action] = uses
            uses += len(unit_parts(self._units, action)) if action.kind != "W" else 0
        self._reductions: list[Key] = []  # of this step, in order
        self._issue = self._data.sharding.piece * self._shards if self._data.sharding.by_matrix else 0.0
        two = self._data.sharding.two_lanes
        self._lane, self._axis = ("dp reduce", "shard_reduce") if two else ("dp", "shard")
        grouped = job.plan.expert_shard_size < job.plan.expert_replicas
        self._experts_axis = "edp_shard" if grouped else "edp"
        self._experts_reduced = "edp_reduce" if two else self._experts_axis

    def before(self, step: int) -> None:
        """Add the gathers of a step's first FSDP units, which begin when the optimizer has updated them."""
        needs = (Need(self._stage, ("optimizer", step - 1)),) if step else ()
        for use in range(min(self._window, len(self._uses))):
            self._add_gather(use, step, needs)

    def parts(self, action: Action, step: int) -> list[ActionPart]:
        """Return an action in one part per FSDP unit, each with the gather and reduction that it waits for."""
        order = unit_parts(self._units, action)
        if self._alone:
            return [ActionPart(self._job.whole(self._stage, action.chunk))]
        found = []
        for index, stretch in enumerate(order):
            needs: list[Key] = []
            memory: list[MemoryChange] = []
            makes = action.kind in ("B", "W")
            if action.kind != "W":
                number = self._first_use[action] + index
                use = self._uses[number]
                if use.gathered and self._shards > 1:
                    needs.append(("gathered", step, number))
                if use.freed and self._shards > 1:
                    memory.append(
                        MemoryChange("parameters", 0.0, -self._unit_bytes(use.unit, self._data.parameter_bytes))
                    )
            needs += self._reductions[-2:-1] if self._data.overlap_reduce and makes else ()
            needs += self._reductions[-1:] if not self._data.overlap_reduce else ()
            if makes and self._shards > 1 and self._allocates_gradients(action, stretch):
                memory.append(MemoryChange("gradients", self._unit_bytes(stretch.unit, self._data.gradient_bytes), 0.0))
            if self._is_reduced(action, stretch):
                self._reductions.append(self._reduction_key(action, step, index))
            found.append(ActionPart(stretch.work, tuple(Need(self._stage, key) for key in needs), index, tuple(memory)))
        return found

    def after(self, action: Action, step: int, part: ActionPart, made: tuple[object, ...]) -> None:
        """Add the reduction of a part's gradients and the next gather; ``made`` is the key of the part's end."""
        if self._alone:
            return
        stretch = unit_parts(self._units, action)[part.bucket]
        if self._is_reduced(action, stretch):
            self._add_reduction(action, step, part.bucket, stretch, Need(self._stage, made))
        if action.kind != "W":
            self._add_gather(self._first_use[action] + part.bucket + self._window, step, (Need(self._stage, made),))

    def finish(self, step: int) -> None:
        """Add everything between a step's last backward and the next step: norm and optimizer."""
        plan = self._job.plan
        needs = tuple(Need(self._stage, key) for key in self._reductions[-1:])
        norm = (("shard",) if self._shards > 1 else ()) + (("model",) if plan.tp * plan.pp > 1 else ())
        if plan.experts_apart:
            norm = ("world",)
        held = self._units.total
        parameters = held.common / self._shards + held.experts / plan.expert_shard_size
        add_step_end(self._job, self._lanes, step, needs, share=self._shards, parameters=parameters, norm=norm)
        self._reductions = []

    def _add_gather(self, number: int, step: int, needs: tuple[Need, ...]) -> None:
        if self._shards == 1 or number >= len(self._uses) or not self._uses[number].gathered:
            return
        unit = self._uses[number].unit
        chunk, layer = self._find_unit(unit)
        memory = (MemoryChange("parameters", self._unit_bytes(unit, self._data.parameter_bytes), 0.0),)
        calls = self._collective_calls(unit, "shard", self._experts_axis, self._data.parameter_bytes)
        if self._uses[number].backward and self._data.sharding.again:
            calls += calls[:-1]
        segment = self._lanes.collectives(
            "all_gather", "parameters", calls, "dp", layer=layer, memory=memory, issue=self._issue
        )  # fmt: skip
        self._lanes.append_item("dp", Item(segment, ("gathered", step, number), needs, step, chunk))

    def _add_reduction(self, action: Action, step: int, index: int, stretch: UnitPart, need: Need) -> None:
        size = self._unit_bytes(stretch.unit, self._data.gradient_bytes)
        key = self._reduction_key(action, step, index)
        _, layer = self._find_unit(stretch.unit)
        copies = self._job.replicas // self._shards
        if seconds := self._data.copy_seconds(self._units.sizes[stretch.unit]):
            name = (*key, "copied")
            kind = "backward" if action.kind == "B" else "weight_grad"
            copied = Segment((Op(Compute(seconds), "compute", kind, "gradient_copies", layer),))
            self._lanes.append_item(MAIN, Item(copied, name, (need,), step, action.chunk))
            need = Need(self._stage, name)
        if self._shards > 1:
            memory = (MemoryChange("gradients", 0.0, -size),)
            calls = self._collective_calls(stretch.unit, self._axis, self._experts_reduced, self._data.gradient_bytes)
            segment = self._lanes.collectives(
                "reduce_scatter", "gradients", calls, self._lane, layer=layer, memory=memory, issue=self._issue
            )  # fmt: skip
            scattered = (*key, "scattered") if copies > 1 else key
            self._lanes.append_item(self._lane, Item(segment, scattered, (need,), step, action.chunk))
        if copies > 1:
            segment = self._lanes.collectives(
                "all_reduce", "gradients", self._sum_calls(stretch.unit, size), self._lane, layer=layer
            )  # fmt: skip
            self._lanes.append_item(self._lane, Item(segment, key, (need,), step, action.chunk))

    def _allocates_gradients(self, action: Action, stretch: UnitPart) -> bool:
        if not self._reduces_each_microbatch(stretch) and self._first_gradient[action.chunk] != action:
            return False
        return stretch.unit != self._units.root or stretch.work.lm_head

    def _is_reduced(self, action: Action, stretch: UnitPart) -> bool:
        if action.kind not in ("B", "W") or not self._units.sizes[stretch.unit]:
            return False
        if not self._reduces_each_microbatch(stretch) and self._last_gradient[action.chunk] != action:
            return False
        return stretch.unit != self._units.root or stretch.work.embedding

    def _reduces_each_microbatch(self, stretch: UnitPart) -> bool:
        apart = stretch.unit == self._units.root and len(self._units.chunks) > 1
        return self._data.sharding.every_microbatch and not apart

    @staticmethod
    def _reduction_key(action: Action, step: int, index: int) -> Key:
        return ("reduced", step, action.chunk, index, action.microbatch)

    def _collective_calls(self, unit: int, axis: str, of_experts: str, each: float) -> list[tuple[str, float]]:
        """Return (axis, bytes) of gathering or reducing a unit: common parameters over ``axis``, experts separately."""
        held, plan = self._units.held[unit], self._job.plan
        experts = held.experts > 0 and plan.expert_shard_size > 1
        common = [(axis, parameters * each) for parameters in self._units.matrices[unit]]
        return [*common, *([(of_experts, held.experts * each)] if experts else [])]

    def _sum_calls(self, unit: int, size: float) -> list[tuple[str, float]]:
        held, plan = self._units.held[unit], self._job.plan
        if not held.experts:
            return [("replica", size / self._shards)]
        each, experts = self._data.gradient_bytes, held.experts / plan.expert_shard_size
        return [("replica", held.common / self._shards * each), ("edp_replica", experts * each)]

    def _unit_bytes(self, unit: int, each: float) -> float:
        return self._units.sizes[unit] * each

    def _find_unit(self, unit: int) -> tuple[int, int]:
        for chunk, stretches in enumerate(self._units.chunks):
            for stretch in stretches:
                if stretch.unit == unit:
                    return chunk, stretch.work.layers[0] if stretch.work.layers else -1
        raise AssertionError(unit)
