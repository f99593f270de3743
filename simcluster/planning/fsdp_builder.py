"""ZeRO 3 (FSDP): gathers of parameters unit by unit before use, and reduce-scatters of gradients.

A use of a unit (``fsdp_units``) waits for its all-gather, unless the unit is still there. The gather may begin when the
use ``prefetch + 1`` before it is over, also of another pass, so that at most ``prefetch + 1`` units are unsharded
(``FsdpOptions.reshard_after_forward``). Gradients are reduce-scattered after each stretch of B (or W); a stretch waits
until the reduction of the last but one is over, as in FSDP2, so that gradients of at most two units are unsharded.

With one lane, gathers and reductions wait for each other in the order in which they are issued: the gather of the unit
``prefetch`` ahead before a stretch, the reduction of its gradients after it (PyTorch's BACKWARD_PRE). With two they
share the links instead. HSDP: sharded over ``ParallelPlan.shard_size`` ranks, whose shards of the gradients are summed
over the ranks that have the same shard. ``ParallelPlan.regather``: parameters are gathered again from a part of those
ranks, which kept them after the forward (hpZ of ZeRO++, arXiv:2306.10209 section 3.2).

Experts of a mixture that only some ranks hold are sharded over those alone ("edp", ``owned_parameters``), with HSDP
over those in a shard group: a unit is then gathered and reduced in two calls, one after the other (PyTorch FSDP2 on a
separate mesh for experts, as torchtitan has it: "efsdp"). Without ``overlap_gather`` nothing is prefetched; without
``overlap_reduce`` computation waits for every reduction.

The root unit's gradients (tied embeddings on one stage) are reduced when the embedding's are complete: in each
microbatch, or, where embedding and LM head are in different chunks, in the last.

Where each matrix is gathered separately (``FsdpOptions.gather_by_matrix``) the host lists the pieces before every call.
PyTorch FSDP, arXiv:2304.11277; torch.distributed.fsdp (limit_all_gathers, no_sync, HYBRID_SHARD); MODELLING.md F.2.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from simcluster.planning.fsdp_units import (
    FsdpUnitPart,
    action_unit_parts,
    count_unsharded_units,
    find_fsdp_units,
    list_unit_uses,
)
from simcluster.planning.job import Job
from simcluster.planning.ops import Dependency, MemoryChange, Op, WorkItem
from simcluster.planning.owned_parameters import OwnedParameters
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.replicas import ActionPart, add_step_end
from simcluster.planning.work_kinds import Compute
from simcluster.schedules import Action

Key = tuple[object, ...]


class FsdpBuilder:
    """Builder of one stage's ZeRO 3 gathers and reductions (ZeRO 0 to 2: ``replicas.DataParallelBuilder``)."""

    def __init__(self, job: Job, lanes: ProgramBuilder) -> None:
        self._job = job
        self._data = job.data_parallel
        self._lanes = lanes
        self._stage = lanes.stage
        self._shards = job.plan.shard_size
        self._alone = job.replicas == 1
        self._units = find_fsdp_units(job, self._stage)
        self._uses = list_unit_uses(job, self._stage, self._units)
        self._window = count_unsharded_units(job)
        row = job.schedule.rows[self._stage]
        gradients = [action for action in row if action.kind in ("B", "W")]
        self._first_gradient = {action.chunk: action for action in reversed(gradients)}
        self._last_gradient = {action.chunk: action for action in gradients}
        self._first_use: dict[Action, int] = {}
        uses = 0
        for action in row:
            self._first_use[action] = uses
            uses += len(action_unit_parts(self._units, action)) if action.kind != "W" else 0
        self._reductions: list[Key] = []  # of this step, in order
        self._issue = self._data.fsdp.piece_seconds * self._shards if self._data.fsdp.gather_by_matrix else 0.0
        two = self._data.fsdp.uses_two_lanes
        self._lane, self._axis = ("dp reduce", "shard_reduce") if two else ("dp", "shard")
        grouped = job.plan.expert_shard_size < job.plan.expert_replicas
        self._experts_axis = "edp_shard" if grouped else "edp"
        self._experts_reduced = "edp_reduce" if two else self._experts_axis

    def add_first_gathers(self, step: int) -> None:
        """Add the gathers of a step's first FSDP units, which wait for the previous optimizer update."""
        needs = (Dependency(self._stage, ("optimizer", step - 1)),) if step else ()
        for use in range(min(self._window, len(self._uses))):
            self._add_gather(use, step, needs)

    def split_action(self, action: Action, step: int) -> list[ActionPart]:
        """Split an action (a pass of a microbatch) into one part per FSDP unit, with the collectives it waits for."""
        order = action_unit_parts(self._units, action)
        if self._alone:
            return [ActionPart(self._job.pass_over_chunk(self._stage, action.chunk))]
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
                    freed = self._units.sizes[use.unit] * self._data.parameter_bytes * (1.0 - use.kept)
                    memory.append(MemoryChange("parameters", 0.0, -freed))
            needs += self._reductions[-2:-1] if self._data.overlap_reduce and makes else ()
            needs += self._reductions[-1:] if not self._data.overlap_reduce else ()
            if makes and self._shards > 1 and self._allocates_gradients(action, stretch):
                memory.append(MemoryChange("gradients", self._gradient_bytes(stretch.unit), 0.0))
            if self._reduces_gradients_after(action, stretch):
                self._reductions.append(self._reduction_key(action, step, index))
            waits = tuple(Dependency(self._stage, key) for key in needs)
            found.append(ActionPart(stretch.work, waits, index, tuple(memory)))
        return found

    def add_after_part(self, action: Action, step: int, part: ActionPart, part_end: tuple[object, ...]) -> None:
        """Add the gradient reduction of an action part, and the next gather, after the end of that part."""
        if self._alone:
            return
        stretch, end = action_unit_parts(self._units, action)[part.bucket], Dependency(self._stage, part_end)
        if self._reduces_gradients_after(action, stretch):
            self._add_reduction(action, step, part.bucket, stretch, end)
        if action.kind != "W":
            self._add_gather(self._first_use[action] + part.bucket + self._window, step, (end,))

    def finish_step(self, step: int) -> None:
        """Add everything between a step's last backward and the next step: norm and optimizer."""
        plan = self._job.plan
        needs = tuple(Dependency(self._stage, key) for key in self._reductions[-1:])
        norm = (("shard",) if self._shards > 1 else ()) + (("model",) if plan.tp * plan.pp > 1 else ())
        if plan.has_separate_expert_groups:
            norm = ("world",)
        held = self._units.total
        parameters = held.common / self._shards + held.experts / plan.expert_shard_size
        add_step_end(self._job, self._lanes, step, needs, share=self._shards, parameters=parameters, norm=norm)
        self._reductions = []

    def _add_gather(self, number: int, step: int, needs: tuple[Dependency, ...]) -> None:
        if self._shards == 1 or number >= len(self._uses) or not self._uses[number].gathered:
            return
        use, each = self._uses[number], self._data.parameter_bytes
        chunk, layer = self._chunk_and_layer_of_unit(use.unit)
        gathered = self._units.sizes[use.unit] * each * (1.0 - use.held)
        memory = (MemoryChange("parameters", gathered, 0.0),)
        axis, own = "regather" if use.held else "shard", self._units.held[use.unit].all_parameters
        calls = self._collective_calls(own, self._units.matrices[use.unit], axis, self._experts_axis, each)
        if use.backward and self._data.fsdp.gathers_twice:
            calls += calls[:-1]
        segment = self._lanes.collectives_segment(
            "all_gather", "parameters", calls, "dp", layer=layer, memory=memory, issue=self._issue
        )  # fmt: skip
        self._lanes.append_item("dp", WorkItem(segment, ("gathered", step, number), needs, step, chunk))

    def _add_reduction(self, action: Action, step: int, index: int, unit_part: FsdpUnitPart, need: Dependency) -> None:
        size, held = self._gradient_bytes(unit_part.unit), self._units.held[unit_part.unit]
        key = self._reduction_key(action, step, index)
        _, layer = self._chunk_and_layer_of_unit(unit_part.unit)
        copies = self._job.replicas // self._shards
        unit = unit_part.unit
        if seconds := self._data.copy_seconds(self._units.grad_sizes[unit], self._units.sizes[unit]):
            name = (*key, "copied")
            kind = "backward" if action.kind == "B" else "weight_grad"
            copy = Op(Compute(seconds), "compute", kind, "gradient_copies", layer)
            self._lanes.append_op(copy, name, (need,), step, action.chunk)
            need = Dependency(self._stage, name)
        if self._shards > 1:
            memory = (MemoryChange("gradients", 0.0, -size),)
            apart = self._units.matrices[unit] if held.all_parameters == held else (held.common,)
            calls = self._collective_calls(held, apart, self._axis, self._experts_reduced, self._data.gradient_bytes)
            segment = self._lanes.collectives_segment(
                "reduce_scatter", "gradients", calls, self._lane, layer=layer, memory=memory, issue=self._issue
            )  # fmt: skip
            scattered = (*key, "scattered") if copies > 1 else key
            self._lanes.append_item(self._lane, WorkItem(segment, scattered, (need,), step, action.chunk))
        if copies > 1:
            segment = self._lanes.collectives_segment(
                "all_reduce", "gradients", self._replica_sum_calls(unit_part.unit, size), self._lane, layer=layer
            )  # fmt: skip
            self._lanes.append_item(self._lane, WorkItem(segment, key, (need,), step, action.chunk))

    def _allocates_gradients(self, action: Action, unit_part: FsdpUnitPart) -> bool:
        if not self._reduces_each_microbatch(unit_part) and self._first_gradient[action.chunk] != action:
            return False
        return unit_part.unit != self._units.root or unit_part.work.lm_head

    def _reduces_gradients_after(self, action: Action, unit_part: FsdpUnitPart) -> bool:
        if action.kind not in ("B", "W") or not self._units.grad_sizes[unit_part.unit]:
            return False
        if not self._reduces_each_microbatch(unit_part) and self._last_gradient[action.chunk] != action:
            return False
        return unit_part.unit != self._units.root or unit_part.work.embedding

    def _reduces_each_microbatch(self, unit_part: FsdpUnitPart) -> bool:
        apart = unit_part.unit == self._units.root and len(self._units.chunks) > 1
        return self._data.fsdp.reduce_every_microbatch and not apart

    @staticmethod
    def _reduction_key(action: Action, step: int, index: int) -> Key:
        return ("reduced", step, action.chunk, index, action.microbatch)

    def _collective_calls(
        self, held: OwnedParameters, matrices: Sequence[float], axis: str, expert_axis: str, each: float
    ) -> list[tuple[str, float]]:
        """Return (axis, bytes) of the collectives of an FSDP unit: one for expert parameters, one for all others."""
        experts = held.experts > 0 and self._job.plan.expert_shard_size > 1
        common = [(axis, parameters * each) for parameters in matrices]
        return [*common, *([(expert_axis, held.experts * each)] if experts else [])]

    def _replica_sum_calls(self, unit: int, size: float) -> list[tuple[str, float]]:
        held, plan = self._units.held[unit], self._job.plan
        if not held.experts:
            return [("replica", size / self._shards)]
        each, experts = self._data.gradient_bytes, held.experts / plan.expert_shard_size
        return [("replica", held.common / self._shards * each), ("edp_replica", experts * each)]

    def _gradient_bytes(self, unit: int) -> float:
        return self._units.grad_sizes[unit] * self._data.gradient_bytes

    def _chunk_and_layer_of_unit(self, unit: int) -> tuple[int, int]:
        for chunk, stretches in enumerate(self._units.chunks):
            for stretch in stretches:
                if stretch.unit == unit:
                    return chunk, stretch.work.layers[0] if stretch.work.layers else -1
        raise AssertionError(unit)
