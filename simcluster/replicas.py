"""What travels over dp, and the end of a step: gradients reduced, parameters gathered, norm and optimizer.

Replicas hold the parameters whole (ZeRO 0) or share the optimizer's state between them (ZeRO 1: the reduction is a
reduce-scatter, the optimizer works on 1/dp of the parameters, and the new ones are gathered).  Reduction all at once
behind the pipeline or, overlapped, in buckets beside the last backward; the gather behind the optimizer or, overlapped,
beside the next forward.  Then tied embedding gradients are summed between first and last stage, the gradient norm taken
over the model's ranks, and the optimizer run.  Pure; imports ops, the model and the step's plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from simcluster.lanes import Lanes
from simcluster.model import (
    embedding_parameters_per_tp_rank,
    layer_parameters_per_tp_rank,
    lm_head_parameters_per_tp_rank,
)
from simcluster.ops import MAIN, Compute, Item, Need, Op, Segment
from simcluster.schedules import Action
from simcluster.segments import Pass
from simcluster.step_plan import Job

_NORM_BYTES = 4.0  # one fp32 number


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of an action that is one item: ``needs`` is what of dp it waits for, ``bucket`` its number or -1."""

    work: Pass
    needs: tuple[Need, ...] = ()
    bucket: int = -1


class Replicas:
    """What one stage's ranks do together with their replicas."""

    def __init__(self, job: Job, lanes: Lanes) -> None:
        self._job = job
        self._data = job.data_parallel
        self._lanes = lanes
        self._stage = lanes.stage
        row = job.schedule.rows[self._stage]
        chunks = range(job.schedule.num_chunks)
        self._whole = {chunk: job.whole(self._stage, chunk) for chunk in chunks}
        self._embeds = any(part.embedding for part in self._whole.values())
        self._buckets = {chunk: self._cut(self._whole[chunk]) for chunk in chunks}
        self._parameters = sum(size for buckets in self._buckets.values() for _, size in buckets)
        self._first_forward = {action.chunk: action for action in reversed(row) if action.kind == "F"}
        self._last_gradient = {action.chunk: action for action in row if action.kind in ("B", "W")}

    def before(self, step: int) -> None:
        """What goes ahead of the step's first forward: parameters gathered on the dp lane."""
        if not self._gathers_ahead:
            return
        needs = (Need(self._stage, ("optimizer", step - 1)),) if step else ()
        for chunk, buckets in self._buckets.items():
            for bucket in reversed(range(len(buckets))):
                size = buckets[bucket][1] * self._data.parameter_bytes
                segment = self._lanes.collective("all_gather", "dp", "parameters", size, "dp")
                self._lanes.put("dp", Item(segment, ("gathered", step, chunk, bucket), needs, step, chunk))

    def parts(self, action: Action, step: int) -> list[Part]:
        """The action in one piece, or in the buckets in which it waits for parameters or gives out gradients."""
        chunk = action.chunk
        buckets = self._buckets[chunk]
        if action.kind == "F" and self._gathers_ahead and self._first_forward[chunk] == action:
            return [
                Part(buckets[bucket][0], (Need(self._stage, ("gathered", step, chunk, bucket)),), bucket)
                for bucket in reversed(range(len(buckets)))
            ]
        if self._reduces_beside and self._last_gradient[chunk] == action:
            return [Part(part, (), bucket) for bucket, (part, _) in enumerate(buckets)]
        return [Part(self._whole[chunk])]

    def after(self, action: Action, step: int, part: Part, made: tuple[object, ...]) -> None:
        """A part is over (its key is ``made``): its gradients, if they are complete, go out on the dp lane."""
        if part.bucket < 0 or action.kind == "F":
            return
        size = self._buckets[action.chunk][part.bucket][1] * self._data.gradient_bytes
        segment = self._lanes.collective(self._reduction, "dp", "gradients", size, "dp")
        key = ("reduced", step, action.chunk, part.bucket)
        self._lanes.put("dp", Item(segment, key, (Need(self._stage, made),), step, action.chunk))

    def finish(self, step: int) -> None:
        """Everything between the last backward and the next step."""
        job, data = self._job, self._data
        needs: tuple[Need, ...] = ()
        if self._reduces_beside:
            needs = tuple(
                Need(self._stage, ("reduced", step, chunk, bucket))
                for chunk, buckets in self._buckets.items()
                for bucket in range(len(buckets))
            )
        elif job.replicas > 1:
            self._block(step, self._reduction, "dp", "gradients", self._parameters * data.gradient_bytes)
        ends = job.schedule.routes[0][0][0], job.schedule.routes[0][-1][0]
        if job.model.tied_embeddings and ends[0] != ends[1] and self._stage in ends:
            size = lm_head_parameters_per_tp_rank(job.model, job.plan.tp) * data.gradient_bytes
            self._block(step, "all_reduce", "embedding", "embedding_gradients", size, needs)
            needs = ()
        mine = self._parameters / (job.replicas if data.zero else 1)
        norm = Segment((Op(Compute(data.norm_seconds(mine)), "compute", "optimizer", "gradient_norm"),))
        self._lanes.put(MAIN, Item(norm, ("norm", step), needs, step))
        everyone = "world" if data.zero else "model"
        if job.plan.tp * job.plan.pp * (job.replicas if data.zero else 1) > 1:
            self._block(step, "all_reduce", everyone, "gradient_norm", _NORM_BYTES)
        update = Segment((Op(Compute(data.optimizer_seconds(mine)), "compute", "optimizer", "optimizer"),))
        self._lanes.put(MAIN, Item(update, ("optimizer", step), (), step))
        if data.zero and job.replicas > 1 and not data.overlap_gather:
            self._block(step, "all_gather", "dp", "parameters", self._parameters * data.parameter_bytes)

    @property
    def _reduces_beside(self) -> bool:
        return self._data.overlap_reduce and self._job.replicas > 1

    @property
    def _gathers_ahead(self) -> bool:
        return self._data.zero > 0 and self._data.overlap_gather and self._job.replicas > 1

    @property
    def _reduction(self) -> str:
        return "reduce_scatter" if self._data.zero else "all_reduce"

    def _block(self, step: int, kind: str, axis: str, name: str, size: float, needs: tuple[Need, ...] = ()) -> None:
        """A collective that the main lane waits for."""
        segment = self._lanes.collective(kind, axis, name, size)
        self._lanes.put(MAIN, Item(segment, (name, kind, step), needs, step))

    def _cut(self, whole: Pass) -> list[tuple[Pass, float]]:
        """A chunk in buckets of at least bucket_bytes of gradients, in backward order, with their parameters."""
        model, tp = self._job.model, self._job.plan.tp
        per_layer = layer_parameters_per_tp_rank(model, tp)
        limit = self._data.bucket_bytes / self._data.gradient_bytes
        buckets: list[tuple[Pass, float]] = []
        layers: list[int] = []
        size = 0.0
        head = whole.lm_head
        if head:
            size += model.norm_parameters
            if not (model.tied_embeddings and self._embeds):  # one copy serves both ends
                size += lm_head_parameters_per_tp_rank(model, tp)
        for index, layer in enumerate(reversed(whole.layers)):
            layers.append(layer)
            size += per_layer
            final = index == len(whole.layers) - 1
            if final and whole.embedding:
                size += embedding_parameters_per_tp_rank(model, tp)
            if final or size >= limit:
                buckets.append((Pass(tuple(reversed(layers)), final and whole.embedding, head), size))
                layers, size, head = [], 0.0, False
        return buckets
