"""Offloading of activations and optimizer state to host memory, and the copies between GPU and host.

Activations. Part of what the layers of a microbatch's F keep is copied to the host as soon as F is over, and may come
back ``ahead`` actions before its B (or I) is due, which waits for it. What would come back before the action after F is
over stays: nothing would be gained. So a B waits max(0, end of the copy - its other inputs are there), and a copy that
fits in the computation costs nothing (modelling of activation offload in PipeOffload, arXiv:2503.01328).

Optimizer. "stream": its state lives in host memory and passes through the GPU bucket by bucket: copied in, updated,
copied out, the copies of other buckets meanwhile, as ``buffers`` of them fit on the GPU (ZeRO-Infinity,
arXiv:2104.07857 section 5). "host": gradients go down, the host's processors update, and new weights come up, again
bucket by bucket (ZeRO-Offload, arXiv:2101.06840), the update after the gradient norm; gradients stay on the GPU until a
step's end, too.

Copies run on a lane for each direction, overlapped with everything else. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from simcluster.planning.boundaries import BoundaryBuilder
from simcluster.planning.job import Job
from simcluster.planning.ops import MAIN, Direction, Item, MemoryChange, Need, Op, Segment
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.works import Compute, Copy, HostWork
from simcluster.schedules import Action

HOST = "host"
"""The lane of what the host's processors do for the rank."""


class ActivationOffload(NamedTuple):
    """Offloading of a microbatch's activations on a chunk, as positions in the stage's row of actions.

    They are made by ``out`` and read by ``use``, and away from the end of the action at ``gone`` (of a pair its second)
    to the end of that at ``call``.
    """

    out: int
    gone: int
    call: int
    use: int


def plan_offloads(row: Sequence[Action], halves: Sequence[int], ahead: int) -> list[ActivationOffload]:
    """Return the offloads of a stage's row in the order of their return; fused pairs begin at ``halves``."""
    made: dict[tuple[int, int], int] = {}
    found = []
    for place, action in enumerate(row):
        key = action.microbatch, action.chunk
        if action.kind == "F":
            made[key] = place
        elif action.kind in ("B", "I"):
            out = made[key]
            gone, begin = out + (out in halves), place - (place - 1 in halves)
            call = begin - 1 - ahead
            if call > gone:
                found.append(ActivationOffload(out, gone, call, place))
    return found


class OffloadedActivations:
    """Builder of the copies of one stage's activations to the host and back."""

    def __init__(self, job: Job, lanes: ProgramBuilder) -> None:
        self._job = job
        self._lanes = lanes
        self._key = BoundaryBuilder(job, lanes).key
        self._row = row = job.schedule.rows[lanes.stage]
        self._leaves: dict[Action, ActivationOffload] = {}
        self._returns: dict[Action, ActivationOffload] = {}
        self._used: dict[Action, ActivationOffload] = {}
        for trip in plan_offloads(row, job.schedule.fused_at(lanes.stage), job.offload.ahead):
            if self._kept_bytes(row[trip.out]):
                self._leaves[row[trip.out]] = self._returns[row[trip.call]] = self._used[row[trip.use]] = trip

    def needs(self, action: Action, step: int) -> tuple[Need, ...]:
        """Return the copies from the host that an action waits for."""
        trip = self._used.get(action)
        return () if trip is None else (self._need_copy("back", self._row[trip.out], step),)

    def add_copies_after(self, action: Action, step: int) -> None:
        """Add the copies that begin when an action ends: its activations to the host, earlier ones back."""
        stage = self._lanes.stage
        if action in self._leaves:
            self._add_copy(
                "d2h", action, ("away", *self._key(action, step)), (Need(stage, self._key(action, step)),), step
            )
        if action in self._returns:
            made = self._row[self._returns[action].out]
            needs = self._need_copy("away", made, step), Need(stage, self._key(action, step))
            self._add_copy("h2d", made, ("back", *self._key(made, step)), needs, step)

    def _need_copy(self, what: str, made: Action, step: int) -> Need:
        return Need(self._lanes.stage, (what, *self._key(made, step)))

    def _add_copy(
        self, way: Direction, made: Action, key: tuple[object, ...], needs: tuple[Need, ...], step: int
    ) -> None:
        size = self._kept_bytes(made)
        memory = MemoryChange("activations", 0.0, -size) if way == "d2h" else MemoryChange("activations", size, 0.0)
        segment = make_copy(self._lanes, way, "activations", size, (memory,))
        self._lanes.append_item(way, Item(segment, key, needs, step, made.chunk, made.microbatch))

    def _kept_bytes(self, made: Action) -> float:
        offload = self._job.offload
        return offload.activations * offload.kept(self._job.whole(self._lanes.stage, made.chunk).layers)


# --- optimizer ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReducedGradients:
    """Gradients of N ``parameters`` on a rank, which are complete once ``needs`` have ended.

    ``tied``: of a tied embedding, complete only when they have been summed between first and last stage.
    """

    parameters: float
    needs: tuple[Need, ...]
    tied: bool = False


def add_stream_update(job: Job, lanes: ProgramBuilder, step: int, parameters: float) -> None:
    """Add an optimizer update whose state passes through the GPU in buckets: copied in, updated, copied out.

    The first bucket may come in when the last backward of the step is over.
    """
    offload, stage = job.offload, lanes.stage
    count = offload.buckets(parameters)
    size = parameters / count * offload.state_bytes
    compute = Compute(job.data_parallel.optimizer_seconds(parameters / count))
    update = lanes.segment("update", lambda: Segment((Op(compute, "compute", "optimizer", "optimizer"),)))
    begin = Need(stage, BoundaryBuilder(job, lanes).key(job.schedule.rows[stage][-1], step))
    for index in range(count):
        number = step * count + index
        free = (Need(stage, ("state out", number - offload.buffers)),) if number >= offload.buffers else ()
        done = ("optimizer", step) if index == count - 1 else ("update", step, index)
        inside = make_copy(lanes, "h2d", "optimizer_state", size)
        lanes.append_item("h2d", Item(inside, ("state in", number), (begin, *free), step))
        lanes.append_item(MAIN, Item(update, done, (Need(stage, ("state in", number)),), step))
        outside = make_copy(lanes, "d2h", "optimizer_state", size)
        lanes.append_item("d2h", Item(outside, ("state out", number), (Need(stage, done),), step))


def add_host_update(
    job: Job, lanes: ProgramBuilder, step: int, reduced: Sequence[ReducedGradients], ready: tuple[Need, ...],
    zeroed: float,
) -> None:  # fmt: skip
    """Add an optimizer update on the host: gradients are copied down, updated, and new weights copied up.

    The update begins when the gradient norm is known (``ready``). The GPU then sets its gradients to zero, in
    ``zeroed`` seconds.
    """
    offload, stage = job.offload, lanes.stage
    last: tuple[Need, ...] = ()
    for index, part in enumerate(_split_into_buckets(job, reduced)):
        key = (step, index)
        down = make_copy(lanes, "d2h", "gradients", part.parameters * offload.gradient_bytes)
        lanes.append_item("d2h", Item(down, ("gradients down", *key), part.needs, step))
        seconds = part.parameters * offload.update_bytes / offload.host_rate
        segment = lanes.segment((HOST, seconds), partial(_host_segment, seconds))
        lanes.append_item(HOST, Item(segment, ("updated", *key), (Need(stage, ("gradients down", *key)), *ready), step))
        up = make_copy(lanes, "h2d", "parameters", part.parameters * offload.weight_bytes)
        lanes.append_item("h2d", Item(up, ("weights up", *key), (Need(stage, ("updated", *key)),), step))
        last = (Need(stage, ("weights up", *key)),)
    zero = lanes.segment("zero", lambda: Segment((Op(Compute(zeroed), "compute", "optimizer", "zero_gradients"),)))
    lanes.append_item(MAIN, Item(zero, ("optimizer", step), last, step))


def _split_into_buckets(job: Job, reduced: Sequence[ReducedGradients]) -> list[ReducedGradients]:
    found = []
    for part in reduced:
        count = job.offload.buckets(part.parameters)
        found += [ReducedGradients(part.parameters / count, part.needs, part.tied)] * count
    return found


def _host_segment(seconds: float) -> Segment:
    return Segment((Op(HostWork(seconds), HOST, "optimizer", "host_update", lane=HOST),))


def make_copy(
    lanes: ProgramBuilder, way: Direction, name: str, size: float, memory: tuple[MemoryChange, ...] = ()
) -> Segment:
    """Return the segment that copies ``size`` bytes to the host or back."""
    op = Op(Copy(way, size), way, "copy", name, lane=way, memory=memory)
    return lanes.segment((way, name, size, memory), lambda: Segment((op,)))
