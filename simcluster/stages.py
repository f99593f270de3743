"""The program of every stage: the schedule's actions as items, with sends, gradient reduction and the optimizer.

One step of a stage: its row of the schedule, a send behind every F and every B (or I, where the schedule splits the
backward) that has a neighbour, pairs [F|B] one after the other; then the gradients are
reduced over dp (all at once, or in buckets beside the last backward), tied embedding gradients summed between first and
last stage, the gradient norm taken over the model's ranks, and the optimizer run; with ZeRO-1 the reduction is a
reduce-scatter, the optimizer works on 1/dp of the parameters and the new ones are gathered, behind it or, overlapped,
beside the next forward.  Pure; imports ops, segments, schedules and the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from simcluster.model import (
    Model,
    embedding_parameters_per_tp_rank,
    layer_parameters_per_tp_rank,
    lm_head_parameters_per_tp_rank,
)
from simcluster.ops import MAIN, Collective, Compute, Item, Need, Op, Segment, StageProgram, Transfer
from simcluster.parallel import Plan
from simcluster.schedules import Action, Hop, Schedule
from simcluster.segments import Pass

_NORM_BYTES = 4.0  # one fp32 number


@dataclass(frozen=True, slots=True)
class DataParallel:
    """How gradients and parameters travel over dp.

    ``gradient_bytes`` and ``parameter_bytes`` are per element on the wire; ``bucket_bytes`` is the size from which on a
    bucket of gradients is sent.  ``optimizer_seconds`` and ``norm_seconds`` are functions of the parameters they touch.
    """

    zero: int
    overlap_reduce: bool
    overlap_gather: bool
    gradient_bytes: float
    parameter_bytes: float
    bucket_bytes: float
    optimizer_seconds: Callable[[float], float]
    norm_seconds: Callable[[float], float]


class PassMaker(Protocol):
    """Makes the segments of a stage's passes: from a model's kernels (segments.Passes) or from given times (fixed)."""

    def forward(self, part: Pass) -> Segment: ...
    def backward(self, part: Pass) -> Segment: ...
    def input_grad(self, part: Pass) -> Segment: ...
    def weight_grad(self, part: Pass) -> Segment: ...


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that decides the stages' programs."""

    model: Model
    plan: Plan
    schedule: Schedule
    passes: PassMaker
    data_parallel: DataParallel
    send_bytes: float  # over a stage boundary, by each rank
    gather_boundary: bool  # is it sent split over tp and gathered on arrival?
    overlap_sends: bool
    steps: int


def stage_programs(job: Job) -> list[StageProgram]:
    """The items of every stage, in order, lane by lane."""
    return [_Stage(job, stage).program() for stage in range(job.plan.pp)]


def layers_of(job: Job, virtual_stage: int) -> tuple[int, ...]:
    """Global numbers of the layers in one slice of the model: an even split."""
    per_slice = job.model.layers // len(job.schedule.routes[0])
    return tuple(range(virtual_stage * per_slice, (virtual_stage + 1) * per_slice))


class _Stage:
    def __init__(self, job: Job, stage: int) -> None:
        self._job = job
        self._stage = stage
        self._row = job.schedule.rows[stage]
        self._lanes: dict[str, list[Item]] = {MAIN: []}
        self._segments: dict[tuple[object, ...], Segment] = {}
        self._embeds = any(self._ends(chunk)[0] for chunk in range(job.schedule.num_chunks))
        self._buckets = {chunk: self._cut(chunk) for chunk in range(job.schedule.num_chunks)}
        self._parameters = sum(size for buckets in self._buckets.values() for _, size in buckets)

    def program(self) -> StageProgram:
        for step in range(self._job.steps):
            self._gather_ahead(step)
            self._pipeline(step)
            self._finish(step)
        return StageProgram(self._stage, self._lanes)

    # --- what the stage holds ---------------------------------------------------------------------------------------

    def _virtual(self, chunk: int) -> int:
        return self._job.schedule.virtual_stage(0, self._stage, chunk)

    def _ends(self, chunk: int) -> tuple[bool, bool]:
        """Does the chunk hold the first, the last slice of the model?"""
        schedule = self._job.schedule
        return schedule.is_first(0, self._stage, chunk), schedule.is_last(0, self._stage, chunk)

    def _cut(self, chunk: int) -> list[tuple[Pass, float]]:
        """The chunk in buckets of at least bucket_bytes of gradients, in backward order, with their parameters."""
        model, tp = self._job.model, self._job.plan.tp
        first, last = self._ends(chunk)
        per_layer = layer_parameters_per_tp_rank(model, tp)
        limit = self._job.data_parallel.bucket_bytes / self._job.data_parallel.gradient_bytes
        buckets: list[tuple[Pass, float]] = []
        layers: list[int] = []
        size = 0.0
        head = last
        if head:
            size += model.norm_parameters
            if not (model.tied_embeddings and self._embeds):  # one copy serves both ends
                size += lm_head_parameters_per_tp_rank(model, tp)
        todo = list(reversed(layers_of(self._job, self._virtual(chunk))))
        for index, layer in enumerate(todo):
            layers.append(layer)
            size += per_layer
            final = index == len(todo) - 1
            if final and first:
                size += embedding_parameters_per_tp_rank(model, tp)
            if final or size >= limit:
                buckets.append((Pass(tuple(reversed(layers)), final and first, head), size))
                layers, size, head = [], 0.0, False
        return buckets

    # --- the pipeline -----------------------------------------------------------------------------------------------

    def _pipeline(self, step: int) -> None:
        """The row, in order.

        Of a fused pair the first half waits for what both need; what both make is there when the second ends.
        """
        first_forward = {action.chunk: action for action in reversed(self._row) if action.kind == "F"}
        last_gradient = {action.chunk: action for action in self._row if action.kind in ("B", "W")}
        halves = self._job.schedule.fused_at(self._stage)
        held: list[Action] = []
        for position, action in enumerate(self._row):
            marked = first_forward if action.kind == "F" else last_gradient
            key, needs = self._key(action, step), self._needs(action, step)
            if position in halves:
                needs += self._needs(self._row[position + 1], step)
                self._act(action, step, needs, ("half", *key), (), cuts=marked[action.chunk] == action)
                held = [action]
                continue
            also = tuple(self._key(half, step) for half in held)
            self._act(action, step, () if held else needs, key, also, cuts=marked[action.chunk] == action)
            for done in (*held, action):
                self._send(done, step)
            held = []

    def _act(
        self,
        action: Action,
        step: int,
        needs: tuple[Need, ...],
        key: tuple[object, ...],
        also: tuple[object, ...],
        *,
        cuts: bool,
    ) -> None:
        """One action.

        With ``cuts`` the first F of a chunk may wait for its parameters bucket by bucket, and the last B or W give out
        its gradients so.
        """
        chunk, forward = action.chunk, action.kind == "F"
        cut = cuts and (self._gathers_ahead(step) if forward else self._reduces_beside())
        passes = [part for part, _ in self._buckets[chunk]] if cut else [self._whole(chunk)]
        if forward:
            passes.reverse()
        source, _ = self._neighbours(action)
        sent = action.kind != "W" and source is not None and source[0] != self._stage and self._job.gather_boundary
        for index, part in enumerate(passes):
            segment = self._segment(action.kind, replace(part, boundary=sent and index == 0))
            final = index == len(passes) - 1
            if cut and forward:
                needs += (Need(self._stage, ("gathered", step, chunk, len(passes) - 1 - index)),)
            name = key if final else (*key, index)
            item = Item(segment, name, needs, step, chunk, action.microbatch, also if final else ())
            self._put(MAIN, item)
            needs = ()
            if cut and not forward:
                self._reduce(step, chunk, index, name)

    def _whole(self, chunk: int) -> Pass:
        first, last = self._ends(chunk)
        return Pass(layers_of(self._job, self._virtual(chunk)), first, last)

    def _segment(self, kind: str, part: Pass) -> Segment:
        known = self._segments.get((kind, part))
        if known is None:
            passes = self._job.passes
            make = {"F": passes.forward, "B": passes.backward, "I": passes.input_grad, "W": passes.weight_grad}[kind]
            known = self._segments[kind, part] = make(part)
        return known

    def _neighbours(self, action: Action) -> tuple[Hop | None, Hop | None]:
        """Where what the action needs is made, and where its result goes."""
        before = self._job.schedule.previous_hop(action.microbatch, self._stage, action.chunk)
        after = self._job.schedule.next_hop(action.microbatch, self._stage, action.chunk)
        return (before, after) if action.kind == "F" else (after, before)

    def _key(self, action: Action, step: int) -> tuple[object, ...]:
        """What the action makes: I makes for the stage before what B makes."""
        made = "B" if action.kind == "I" else action.kind
        return made, step, action.microbatch, self._virtual(action.chunk)

    def _needs(self, action: Action, step: int) -> tuple[Need, ...]:
        """What an action waits for: its neighbour's tensor, sent over or, on the same stage, just made."""
        source, _ = self._neighbours(action)
        if source is None or action.kind == "W":
            return ()
        made, step_back = ("F", -1) if action.kind == "F" else ("B", 1)
        key = (step, action.microbatch, self._virtual(action.chunk) + step_back)
        return (Need(source[0], (made if source[0] == self._stage else f"send {made}", *key)),)

    def _send(self, action: Action, step: int) -> None:
        """What an action made goes to its neighbour, if that is another stage."""
        _, hop = self._neighbours(action)
        if hop is None or hop[0] == self._stage or action.kind == "W":
            return
        job, key = self._job, self._key(action, step)
        kind = key[0]
        lane = f"send {kind}" if job.overlap_sends else MAIN
        name = "activation" if kind == "F" else "gradient"
        segment = self._segments.get((lane, kind, hop[0]))
        if segment is None:
            work = Transfer(hop[0], job.send_bytes)
            segment = Segment((Op(work, "pp", "send", name, lane=lane),))
            self._segments[lane, kind, hop[0]] = segment
        sent = (f"send {kind}", *key[1:])
        self._put(lane, Item(segment, sent, (Need(self._stage, key),), step, action.chunk, action.microbatch))

    # --- after the pipeline -----------------------------------------------------------------------------------------

    def _reduces_beside(self) -> bool:
        return self._job.data_parallel.overlap_reduce and self._replicas > 1

    def _gathers_ahead(self, step: int) -> bool:
        data = self._job.data_parallel
        return data.zero > 0 and data.overlap_gather and self._replicas > 1

    @property
    def _replicas(self) -> int:
        return self._job.plan.dp * self._job.plan.cp

    def _reduction(self) -> str:
        return "reduce_scatter" if self._job.data_parallel.zero else "all_reduce"

    def _reduce(self, step: int, chunk: int, bucket: int, made: tuple[object, ...]) -> None:
        """One bucket of gradients on the dp lane, as soon as its last backward is over."""
        size = self._buckets[chunk][bucket][1] * self._job.data_parallel.gradient_bytes
        item = self._collective(self._reduction(), "dp", "gradients", size, "dp")
        key = ("reduced", step, chunk, bucket)
        self._put("dp", Item(item, key, (Need(self._stage, made),), step, chunk))

    def _gather_ahead(self, step: int) -> None:
        """Parameters gathered on the dp lane before their first forward of the step."""
        if not self._gathers_ahead(step):
            return
        needs = (Need(self._stage, ("optimizer", step - 1)),) if step else ()
        for chunk, buckets in self._buckets.items():
            for bucket in reversed(range(len(buckets))):
                size = buckets[bucket][1] * self._job.data_parallel.parameter_bytes
                item = self._collective("all_gather", "dp", "parameters", size, "dp")
                self._put("dp", Item(item, ("gathered", step, chunk, bucket), needs, step, chunk))

    def _finish(self, step: int) -> None:
        """Everything between the last backward and the next step."""
        job, data = self._job, self._job.data_parallel
        needs: tuple[Need, ...] = ()
        if self._reduces_beside():
            needs = tuple(
                Need(self._stage, ("reduced", step, chunk, bucket))
                for chunk, buckets in self._buckets.items()
                for bucket in range(len(buckets))
            )
        elif self._replicas > 1:
            self._block(step, self._reduction(), "dp", "gradients", self._parameters * data.gradient_bytes)
        ends = job.schedule.routes[0][0][0], job.schedule.routes[0][-1][0]
        if job.model.tied_embeddings and ends[0] != ends[1] and self._stage in ends:
            size = lm_head_parameters_per_tp_rank(job.model, job.plan.tp) * data.gradient_bytes
            self._block(step, "all_reduce", "embedding", "embedding_gradients", size, needs)
            needs = ()
        mine = self._parameters / (self._replicas if data.zero else 1)
        norm = Segment((Op(Compute(data.norm_seconds(mine)), "compute", "optimizer", "gradient_norm"),))
        self._put(MAIN, Item(norm, ("norm", step), needs, step))
        everyone = "world" if data.zero else "model"
        if job.plan.tp * job.plan.pp * (self._replicas if data.zero else 1) > 1:
            self._block(step, "all_reduce", everyone, "gradient_norm", _NORM_BYTES)
        update = Segment((Op(Compute(data.optimizer_seconds(mine)), "compute", "optimizer", "optimizer"),))
        self._put(MAIN, Item(update, ("optimizer", step), (), step))
        if data.zero and self._replicas > 1 and not data.overlap_gather:
            self._block(step, "all_gather", "dp", "parameters", self._parameters * data.parameter_bytes)

    def _block(self, step: int, kind: str, axis: str, name: str, size: float, needs: tuple[Need, ...] = ()) -> None:
        """A collective that the main lane waits for."""
        self._put(MAIN, Item(self._collective(kind, axis, name, size, MAIN), (name, kind, step), needs, step))

    def _collective(self, kind: str, axis: str, name: str, size: float, lane: str) -> Segment:
        known = self._segments.get((kind, axis, name, size, lane))
        if known is None:
            stream = axis
            if axis in ("model", "world", "embedding"):  # over several axes: named after the slowest, between stages
                stream = "pp" if self._job.plan.pp > 1 else "dp" if axis == "world" else "tp"
            known = Segment((Op(Collective(kind, axis, size), stream, kind, name, lane=lane),))
            self._segments[kind, axis, name, size, lane] = known
        return known

    def _put(self, lane: str, item: Item) -> None:
        self._lanes.setdefault(lane, []).append(item)
