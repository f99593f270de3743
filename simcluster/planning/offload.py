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
from typing import NamedTuple

from simcluster.planning.job import Job
from simcluster.planning.ops import Dependency, Direction, HostWork, MemoryChange, Op
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.stage_boundaries import SendReceiveBuilder
from simcluster.planning.work_kinds import Compute, Copy
from simcluster.schedules import Action

HOST = "host"
"""Lane of the work that the host's CPUs do for the rank."""


class ActivationOffload(NamedTuple):
    """Offload of one microbatch's activations in one chunk, as four positions in the stage's list of actions.

    They are made by ``producer`` and read by ``consumer``, and away from the end of the action at ``copied_out_after``
    (of a pair its second) to the end of that at ``copied_back_after``.
    """

    producer: int
    copied_out_after: int
    copied_back_after: int
    consumer: int


def plan_activation_offloads(row: Sequence[Action], halves: Sequence[int], ahead: int) -> list[ActivationOffload]:
    """Plan the activation offloads of a stage's actions, in the order in which backwards read the activations."""
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


class ActivationCopyBuilder:
    """Builder of the copies of one stage's activations to host memory and back."""

    def __init__(self, job: Job, lanes: ProgramBuilder) -> None:
        self._job = job
        self._lanes = lanes
        self._key = SendReceiveBuilder(job, lanes).output_key
        self._row = row = job.schedule.rows[lanes.stage]
        halves = job.schedule.fused_positions(lanes.stage)
        planned = plan_activation_offloads(row, halves, job.offload.prefetch_actions)
        trips = [trip for trip in planned if self._offloaded_bytes(row[trip.producer])]
        self._leaves = {row[trip.producer] for trip in trips}
        self._returns = {row[trip.copied_back_after]: trip for trip in trips}
        self._used = {row[trip.consumer]: trip for trip in trips}

    def awaited_copies(self, action: Action, step: int) -> tuple[Dependency, ...]:
        """Return dependencies on the copies from host memory that an action waits for."""
        trip = self._used.get(action)
        return () if trip is None else (self._copy_dependency("back", self._row[trip.producer], step),)

    def add_copies_after(self, action: Action, step: int) -> None:
        """Add the copies that start when an action ends: out its own activations, and back earlier ones."""
        end = Dependency(self._lanes.stage, self._key(action, step))
        if action in self._leaves:
            self._add_copy("d2h", action, (end,), step)
        if action in self._returns:
            made = self._row[self._returns[action].producer]
            self._add_copy("h2d", made, (self._copy_dependency("away", made, step), end), step)

    def _copy_dependency(self, what: str, made: Action, step: int) -> Dependency:
        return Dependency(self._lanes.stage, (what, *self._key(made, step)))

    def _add_copy(self, way: Direction, made: Action, needs: tuple[Dependency, ...], step: int) -> None:
        key = self._copy_dependency("away" if way == "d2h" else "back", made, step).key
        size = self._offloaded_bytes(made)
        memory = MemoryChange("activations", 0.0, -size) if way == "d2h" else MemoryChange("activations", size, 0.0)
        copy = make_copy_op(way, "activations", size, (memory,))
        self._lanes.append_op(copy, key, needs, step, made.chunk, made.microbatch)

    def _offloaded_bytes(self, made: Action) -> float:
        offload, layers = self._job.offload, self._job.pass_over_chunk(self._lanes.stage, made.chunk).layers
        return offload.activations * offload.kept_bytes_of_layers(layers)


# --- optimizer ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReducedGradients:
    """Reduced gradients on a rank: the number of parameters, and the ops that complete the reduction.

    ``tied``: of a tied embedding, complete only when they have been summed between first and last stage.
    """

    parameters: float
    needs: tuple[Dependency, ...]
    tied: bool = False


def add_streamed_update(job: Job, lanes: ProgramBuilder, step: int, parameters: float) -> None:
    """Add an optimizer update on the GPU whose state is in host memory: copy in, update, copy out, in buckets.

    The first bucket may come in when the last backward of the step is over.
    """
    offload, stage = job.offload, lanes.stage
    count = offload.count_buckets(parameters)
    size = parameters / count * offload.state_bytes
    compute = Compute(job.data_parallel.optimizer_seconds(parameters / count))
    update = Op(compute, "compute", "optimizer", "optimizer")
    inside, outside = (make_copy_op(way, "optimizer_state", size) for way in ("h2d", "d2h"))
    begin = Dependency(stage, SendReceiveBuilder(job, lanes).output_key(job.schedule.rows[stage][-1], step))
    for index in range(count):
        number = step * count + index
        free = (Dependency(stage, ("state out", number - offload.buffers)),) if number >= offload.buffers else ()
        done = ("optimizer", step) if index == count - 1 else ("update", step, index)
        lanes.append_op(inside, ("state in", number), (begin, *free), step)
        lanes.append_op(update, done, (Dependency(stage, ("state in", number)),), step)
        lanes.append_op(outside, ("state out", number), (Dependency(stage, done),), step)


def add_host_update(
    job: Job, lanes: ProgramBuilder, step: int, reduced: Sequence[ReducedGradients], ready: tuple[Dependency, ...],
    zeroed: float,
) -> None:  # fmt: skip
    """Add an optimizer update on the host's CPUs: copies of gradients to the host, and of new weights back.

    The update begins when the gradient norm is known (``ready``). The GPU then sets its gradients to zero, in
    ``zeroed`` seconds.
    """
    offload, stage = job.offload, lanes.stage
    last: tuple[Dependency, ...] = ()
    for index, part in enumerate(_split_into_buckets(job, reduced)):
        key = (step, index)
        down = make_copy_op("d2h", "gradients", part.parameters * offload.gradient_bytes)
        lanes.append_op(down, ("gradients down", *key), part.needs, step)
        seconds = part.parameters * offload.update_bytes / offload.host_rate
        update = Op(HostWork(seconds), HOST, "optimizer", "host_update", lane=HOST)
        lanes.append_op(update, ("updated", *key), (Dependency(stage, ("gradients down", *key)), *ready), step)
        up = make_copy_op("h2d", "parameters", part.parameters * offload.weight_bytes)
        lanes.append_op(up, ("weights up", *key), (Dependency(stage, ("updated", *key)),), step)
        last = (Dependency(stage, ("weights up", *key)),)
    lanes.append_op(Op(Compute(zeroed), "compute", "optimizer", "zero_gradients"), ("optimizer", step), last, step)


def _split_into_buckets(job: Job, reduced: Sequence[ReducedGradients]) -> list[ReducedGradients]:
    found = []
    for part in reduced:
        count = job.offload.count_buckets(part.parameters)
        found += [ReducedGradients(part.parameters / count, part.needs, part.tied)] * count
    return found


def make_copy_op(way: Direction, name: str, size: float, memory: tuple[MemoryChange, ...] = ()) -> Op:
    """Return the op that copies ``size`` bytes from GPU to host memory or back."""
    return Op(Copy(way, size), way, "copy", name, lane=way, memory=memory)
