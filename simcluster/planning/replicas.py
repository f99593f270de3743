"""Data-parallel communication and the end of a step: gradient reduction, parameter gather, norm and optimizer.

Replicas hold the parameters whole (ZeRO 0) or share the optimizer's state between them (ZeRO 1: the reduction is a
reduce-scatter, the optimizer works on 1/dp of the parameters, and the new ones are gathered). The reduction comes all
at once after the pipeline or, overlapped, in buckets during the last backward; the gather after the optimizer or,
overlapped, during the next forward. Each step ends equally (``add_step_end``): gradients of an embedding that two
stages have (tied, or for multi-token prediction) are summed between first and last stage, the gradient norm is taken
over all ranks that have a part of the gradients, and the optimizer runs, on the GPU or the host (``offload``).

Under ZeRO 2 a rank keeps only its part of the gradients: every microbatch's are reduced after its backward or,
overlapped, in buckets during it (arXiv:1910.02054 section 5.2), and a bucket waits until the last but one has left its
buffer (DeepSpeed has two, for overlap_comm). At the end of a step only that part is set to zero, where ZeRO 0 and 1
clear the whole buffer (Megatron-LM, ``_ParamAndGradBuffer.mark_correct``; Megatron-FSDP overwrites what is unsharded).
With ``FsdpOptions.reduce_every_microbatch`` off they are summed up unsharded and reduced in the last one's backward.
(ZeRO 3 is in ``fsdp_builder``.) Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from simcluster.model.layers import lm_head_parameters_per_tp_rank
from simcluster.planning.job import Job
from simcluster.planning.offload import ReducedGradients, add_host_update, add_streamed_update
from simcluster.planning.ops import MAIN, Dependency, HostWork, MemoryChange, Op, Segment, WorkItem
from simcluster.planning.optimizer import UpdateWork
from simcluster.planning.owned_parameters import (
    OwnedParameters,
    layers_with_prediction,
    parameters_of_ends,
    parameters_of_layers,
    prediction_parameters,
)
from simcluster.planning.pass_segments import PassLayers
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.work_kinds import Compute
from simcluster.schedules import Action

_NORM_BYTES = 4.0  # one fp32 number


def add_step_end(
    job: Job, lanes: ProgramBuilder, step: int, needs: tuple[Dependency, ...], *, share: int, parameters: float,
    norm: tuple[str, ...], reduced: Sequence[ReducedGradients] = (), whole: float = 0.0,
) -> None:  # fmt: skip
    """Add the gradient norm and the optimizer update at the end of a step.

    They begin after ``needs``. The rank has 1/``share`` of the embedding's gradient; ``norm`` are the axes over which
    the squares of gradients are added, one after the other. ``reduced`` lists them in the parts that are complete
    early; ``whole`` counts all gradients that the rank accumulated.
    """
    data, stage = job.data_parallel, lanes.stage
    held = [job.pass_over_chunk(stage, chunk) for chunk in range(job.schedule.num_chunks)]
    shared = (job.model.tied_embeddings or job.model.prediction_layers) and not job.model.freezes("embedding")
    ends = any(part.embedding for part in held) != any(part.lm_head for part in held)
    if shared and (stage in job.plan.embedding_stages if job.plan.embedding_stages else ends):
        size = lm_head_parameters_per_tp_rank(job.model, job.plan.tp) * data.gradient_bytes / share
        add_blocking_collectives(lanes, step, "all_reduce", "embedding_gradients", [("embedding", size)], needs)
        needs = ()
        early = [part for part in reduced if not part.tied]
        reduced = early + [replace(part, needs=lanes.main_lane_end()) for part in reduced if part.tied]
    sums = reduced or [ReducedGradients(parameters, (*needs, *lanes.main_lane_end()))]
    seconds = data.norm_seconds(parameters) + (data.buffer_seconds(whole) if whole else 0.0)
    lanes.append_op(Op(Compute(seconds), "compute", "optimizer", "gradient_norm"), ("norm", step), needs, step)
    for index, axis in enumerate(norm):
        add_blocking_collectives(lanes, step, "all_reduce", "gradient_norm", [(axis, _NORM_BYTES)], part=norm[:index])
    if job.offload.optimizer == "stream":
        return add_streamed_update(job, lanes, step, parameters)
    if job.offload.optimizer == "host":
        return add_host_update(job, lanes, step, sums, lanes.main_lane_end(), data.zero_seconds(max(whole, parameters)))
    if job.offload.optimizer != "none":
        assert_never(job.offload.optimizer)
    others = data.zero_seconds(whole - parameters) if whole > parameters else 0.0  # gradients that others' updates read
    seconds = data.optimizer_seconds(parameters) + others
    layers = layers_with_prediction(
        job.model, job.plan, (layer for part in held for layer in part.layers), last=any(part.lm_head for part in held)
    )
    made = data.optimizer.update_work(layers) if data.optimizer else UpdateWork()
    for kind, calls in ((made.kind, made.calls), ("all_to_all", made.exchanges)):
        if calls:
            add_blocking_collectives(lanes, step, kind, made.collective_name, calls)
    ops = [Op(Compute(seconds + min(made.seconds, 0.0)), "compute", "optimizer", "optimizer")]
    ops += [Op(Compute(made.seconds), "compute", "optimizer", made.kernel_name)] if made.seconds > 0 else []
    update = Segment(tuple(ops))
    if data.outer_step is None:
        return lanes.append_item(MAIN, WorkItem(update, ("optimizer", step), (), step))
    lanes.append_item(MAIN, WorkItem(update, ("inner_optimizer", step), (), step))
    shares = 1 if data.zero else job.replicas  # of one worker, who hold the same
    data.outer_step.add_outer_step(
        lanes, step, parameters / shares, parameters * data.parameter_bytes if shares > 1 else 0.0
    )
    return lanes.append_op(Op(HostWork(0.0), "host", "optimizer", "outer"), ("optimizer", step), (), step)


def add_blocking_collectives(
    lanes: ProgramBuilder, step: int, kind: str, name: str, calls: Sequence[tuple[str, float]],
    needs: tuple[Dependency, ...] = (), *, part: tuple[object, ...] = (), memory: tuple[MemoryChange, ...] = (),
) -> None:  # fmt: skip
    """Add collectives, each given as (axis, bytes), to the main lane, one after the other."""
    segment = lanes.collectives_segment(kind, name, calls, memory=memory)
    lanes.append_item(MAIN, WorkItem(segment, (name, kind, step, *part), needs, step))


@dataclass(frozen=True, slots=True)
class ActionPart:
    """Part of an action that runs as one work item, such as the layers of one gradient bucket.

    ``needs`` is what it waits for over dp, ``bucket`` its number or -1; ``memory`` is allocated and freed with it.
    """

    work: PassLayers
    needs: tuple[Dependency, ...] = ()
    bucket: int = -1
    memory: tuple[MemoryChange, ...] = ()


class DataParallelBuilder:
    """Builder of one stage's data-parallel communication under ZeRO 0 to 2."""

    def __init__(self, job: Job, lanes: ProgramBuilder) -> None:
        self._job = job
        self._data = job.data_parallel
        self._reduces_beside = self._data.overlap_reduce and not job.has_no_replicas
        self._gathers_ahead = self._data.zero > 0 and self._data.overlap_gather and not job.has_no_replicas
        self._lanes = lanes
        self._stage = stage = lanes.stage
        self._reduction = "reduce_scatter" if self._data.zero else "all_reduce"
        row = job.schedule.rows[stage]
        chunks = range(job.schedule.num_chunks)
        # a chunk in what travels over dp: by its slice where stages that hold copies take part
        self._place = {each: job.schedule.model_slice(stage, each) if job.plan.copies else each for each in chunks}
        self._whole = {chunk: ActionPart(job.pass_over_chunk(self._stage, chunk)) for chunk in chunks}
        self._buckets = split_into_grad_buckets(job, self._stage)
        if job.plan.copies:  # every stage that holds these slices must take them in the same order
            self._buckets = dict(sorted(self._buckets.items(), key=lambda each: -self._place[each[0]]))
        self._parameters = sum((held for buckets in self._buckets.values() for _, held in buckets), OwnedParameters())
        self._behind: list[tuple[int, int, WorkItem]] = []  # reductions that wait for their turn, by slice and bucket
        self._first_forward = {action.chunk: action for action in reversed(row) if action.kind == "F"}
        gradients = [action for action in row if action.kind in ("B", "W")]
        self._first_gradient = {action.chunk: action for action in reversed(gradients)}
        self._last_gradient = {action.chunk: action for action in gradients}
        pairs = job.schedule.fused_positions(stage) if job.overlap_pairs else ()
        self._first_half = {row[place + 1]: row[place] for place in pairs if row[place].kind == "B"}
        self._sent: list[tuple[object, ...]] = []  # keys of this step's reductions beside the backward

    def add_first_gathers(self, step: int) -> None:
        """Add the parameter gathers that precede a step's first forward, on the dp lane."""
        if not self._gathers_ahead:
            return
        needs = (Dependency(self._stage, ("optimizer", step - 1)),) if step else ()
        for chunk, buckets in self._buckets.items():
            for bucket in reversed(range(len(buckets))):
                calls = buckets[bucket][1].collective_calls(self._job.plan, self._data.parameter_bytes)
                segment = self._lanes.collectives_segment("all_gather", "parameters", calls, "dp")
                key = ("gathered", step, self._place[chunk], bucket)
                self._lanes.append_item("dp", WorkItem(segment, key, needs, step, chunk))

    def split_action(self, action: Action, step: int) -> list[ActionPart]:
        """Split an action into parts, one per bucket of gathered parameters or of reduced gradients."""
        chunk = action.chunk
        buckets, place = self._buckets[chunk], self._place[chunk]
        if action.kind == "F" and self._gathers_ahead and self._first_forward[chunk] == action:
            return [
                ActionPart(buckets[bucket][0], (Dependency(self._stage, ("gathered", step, place, bucket)),), bucket)
                for bucket in reversed(range(len(buckets)))
            ]
        if self._reduces_beside and self._reduces_gradients_after(action):
            return [self._bucket_part(action, step, bucket) for bucket in range(len(buckets))]
        if self._data.zero != 2:
            return [self._whole[chunk]]
        return [replace(self._whole[chunk], memory=self._gradient_memory(action, [held for _, held in buckets]))]

    def add_after_part(self, action: Action, step: int, part: ActionPart, part_end: tuple[object, ...]) -> None:
        """Add the gradient reduction that is due after an action part, if any, after the end of that part."""
        if self._data.zero == 2 and not self._reduces_beside and self._reduces_gradients_after(action):
            held = sum((held for _, held in self._buckets[action.chunk]), OwnedParameters())
            place = (action.chunk, action.microbatch)
            memory = (MemoryChange("gradients", 0.0, -held.total * self._data.gradient_bytes),)
            calls = held.collective_calls(self._job.plan, self._data.gradient_bytes)
            add_blocking_collectives(self._lanes, step, self._reduction, "gradients", calls, part=place, memory=memory)
        if part.bucket < 0 or action.kind == "F":
            return
        held = self._buckets[action.chunk][part.bucket][1]
        size = held.total * self._data.gradient_bytes
        freed = (MemoryChange("gradients", 0.0, -size),) if self._data.zero == 2 else ()
        calls = held.collective_calls(self._job.plan, self._data.gradient_bytes)
        segment = self._lanes.collectives_segment(self._reduction, "gradients", calls, "dp", memory=freed)
        key = self._reduction_key(action, step, part.bucket)
        item = WorkItem(segment, key, (Dependency(self._stage, part_end),), step, action.chunk)
        if self._job.plan.copies:
            self._behind.append((-self._place[action.chunk], part.bucket, item))
        else:
            self._lanes.append_item("dp", item)

    def finish_step(self, step: int) -> None:
        """Add everything between a step's last backward and the next step: reductions, norm, optimizer."""
        job, data = self._job, self._data
        for *_, item in sorted(self._behind, key=lambda each: each[:2]):
            self._lanes.append_item("dp", item)
        self._behind = []
        needs: tuple[Dependency, ...] = ()
        if self._reduces_beside:
            needs = tuple(
                Dependency(self._stage, self._reduction_key(self._last_gradient[chunk], step, bucket))
                for chunk, buckets in self._buckets.items()
                for bucket in range(len(buckets))
            )
        elif not job.has_no_replicas and data.zero != 2:
            calls = self._parameters.collective_calls(job.plan, data.gradient_bytes)
            add_blocking_collectives(self._lanes, step, self._reduction, "gradients", calls)
        everyone = "world" if data.zero or job.plan.has_separate_expert_groups else "model"  # who has other gradients
        ranks = job.plan.num_ranks if everyone == "world" else job.plan.tp * job.plan.pp
        norm = (everyone,) if ranks > 1 else ()
        reduced = self._list_reduced_gradients(step) if self._reduces_beside and job.offload.optimizer == "host" else ()
        parameters = self._count_updated_params(self._parameters)
        whole = self._parameters.total if data.zero < 2 else 0.0
        add_step_end(job, self._lanes, step, needs, share=1, parameters=parameters, norm=norm, reduced=reduced,
                     whole=whole)  # fmt: skip
        if data.zero and not job.has_no_replicas and not data.overlap_gather:
            calls = self._parameters.collective_calls(job.plan, data.parameter_bytes)
            add_blocking_collectives(self._lanes, step, "all_gather", "parameters", calls)
        self._sent = []

    def _count_updated_params(self, held: OwnedParameters) -> float:
        return held.sharded_count(self._job.plan) if self._data.zero else held.total

    def _list_reduced_gradients(self, step: int) -> list[ReducedGradients]:
        found: dict[tuple[object, ...], ReducedGradients] = {}
        for chunk, buckets in self._buckets.items():
            for number, (work, held) in enumerate(buckets):
                key = self._reduction_key(self._last_gradient[chunk], step, number)
                tied = work.embedding or work.lm_head or work.layers[-1:] >= (self._job.model.layers,)
                found[key] = ReducedGradients(self._count_updated_params(held), (Dependency(self._stage, key),), tied)
        return [found[key] for key in self._sent if key in found]

    def _reduces_gradients_after(self, action: Action) -> bool:
        if action.kind not in ("B", "W") or self._job.has_no_replicas:
            return False
        each = self._data.zero == 2 and self._data.fsdp.reduce_every_microbatch
        return each or self._last_gradient[action.chunk] == action

    def _reduction_key(self, action: Action, step: int, bucket: int) -> tuple[object, ...]:
        microbatch = (action.microbatch,) if self._data.zero == 2 else ()
        return ("reduced", step, self._place[action.chunk], bucket, *microbatch)

    def _bucket_part(self, action: Action, step: int, bucket: int) -> ActionPart:
        work, held = self._buckets[action.chunk][bucket]
        before = self._sent[-2:-1]
        if beside := self._first_half.get(action):  # whose reductions come after this half has begun
            theirs = {self._reduction_key(beside, step, each) for each in range(len(self._buckets[beside.chunk]))}
            before = [key for key in self._sent if key not in theirs][-2:-1]
        self._sent.append(self._reduction_key(action, step, bucket))
        if self._data.zero != 2:
            return ActionPart(work, (), bucket)
        return ActionPart(
            work, tuple(Dependency(self._stage, key) for key in before), bucket, self._gradient_memory(action, [held])
        )

    def _gradient_memory(self, action: Action, held: Iterable[OwnedParameters]) -> tuple[MemoryChange, ...]:
        """Return the memory of unsharded gradients between backward and reduction under ZeRO 2."""
        if action.kind not in ("B", "W") or self._job.has_no_replicas:
            return ()
        if not self._data.fsdp.reduce_every_microbatch and self._first_gradient[action.chunk] != action:
            return ()
        return (MemoryChange("gradients", sum(held, OwnedParameters()).total * self._data.gradient_bytes, 0.0),)


def split_into_grad_buckets(job: Job, stage: int) -> dict[int, list[tuple[PassLayers, OwnedParameters]]]:
    """Split the layers of each chunk into gradient buckets of at least ``bucket_bytes``, in backward order."""
    wholes = [job.pass_over_chunk(stage, chunk) for chunk in range(job.schedule.num_chunks)]
    embeds = any(whole.embedding for whole in wholes)
    return {chunk: _split_chunk_into_buckets(job, whole, embeds) for chunk, whole in enumerate(wholes)}


def _split_chunk_into_buckets(job: Job, whole: PassLayers, embeds: bool) -> list[tuple[PassLayers, OwnedParameters]]:
    model, tp = job.model, job.plan.tp
    limit = job.data_parallel.bucket_bytes / job.data_parallel.gradient_bytes
    buckets: list[tuple[PassLayers, OwnedParameters]] = []
    layers: list[int] = []
    held = OwnedParameters()
    types = {model.layer_type(layer): layer for layer in whole.layers}
    own = {name: parameters_of_layers(model, job.plan, [layer]) for name, layer in types.items()}
    head = whole.lm_head
    if head:
        # one copy of tied embeddings serves both ends
        held += parameters_of_ends(model, tp, last=True, table=not (model.tied_embeddings and embeds))
    held += prediction_parameters(model, job.plan, whole.layers, first=embeds, last=head)
    for layer in reversed(whole.layers):
        if layers and held.total >= limit:
            buckets.append((PassLayers(tuple(reversed(layers)), embedding=False, lm_head=head), held))
            layers, held, head = [], OwnedParameters(), False
        layers.append(layer)
        held += own[model.layer_type(layer)]
    if whole.embedding:
        held += parameters_of_ends(model, tp, first=True)
    return [*buckets, (PassLayers(tuple(reversed(layers)), whole.embedding, head), held)]
