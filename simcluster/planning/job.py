"""Planning job: model, slices, rank grid, schedule, parallelism and offloading, which decide the ops of a step.

Pure data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal, Protocol, assert_never

from simcluster.base.errors import InputError
from simcluster.base.shown import Displayable
from simcluster.model.transformer import Model
from simcluster.planning.checkpoint import SavedParts
from simcluster.planning.ops import Segment
from simcluster.planning.optimizer import Optimizer, OuterUpdate
from simcluster.planning.parallel import Plan
from simcluster.planning.segments import Pass
from simcluster.schedules import Action, Schedule


@dataclass(frozen=True, slots=True)
class Slices:
    """Partition of the model's layers into slices (virtual stages): ``counts[s]`` layers in slice s, in order."""

    counts: tuple[int, ...]

    @classmethod
    def even(cls, layers: int, slices: int) -> Slices:
        """Return slices with equal numbers of layers; raise InputError if the layers do not divide."""
        if layers % slices:
            raise InputError(f"{layers} layers do not divide evenly over {slices} slices; use a multiple of {slices}")
        return cls((layers // slices,) * slices)

    @classmethod
    def nearly_even(cls, layers: int, slices: int) -> Slices:
        """Return slices as even as possible, the longer ones first."""
        return cls(tuple(layers // slices + (number < layers % slices) for number in range(slices)))

    @classmethod
    def of_stages(cls, layers: Sequence[int], schedule: Schedule) -> Slices:
        """Return slices with ``layers[stage]`` layers per stage, spread evenly over its chunks.

        The schedule has one copy of the model. As evenly as possible: where layers do not divide, chunks that are first
        in the model's order have one more, but those with the embedding or the LM head last, as they have more work.
        """
        route = schedule.routes[0]
        counts = [0] * len(route)
        for stage, count in enumerate(layers):
            mine = [number for number, hop in enumerate(route) if hop[0] == stage]
            mine.sort(key=lambda number: number in (0, len(route) - 1))
            for place, number in enumerate(mine):
                counts[number] = count // len(mine) + (place < count % len(mine))
        return cls(tuple(counts))

    @property
    def layers(self) -> int:
        """Number of layers of the model."""
        return sum(self.counts)

    def layers_of(self, number: int) -> tuple[int, ...]:
        """Return the layer numbers of one slice of the model."""
        first = sum(self.counts[:number])
        return tuple(range(first, first + self.counts[number]))

    def whole(self, number: int) -> Pass:
        """Return all layers of one slice, with embedding and LM head if it has them, as one pass."""
        return Pass(self.layers_of(number), number == 0, number == len(self.counts) - 1)

    def slice_of(self, layer: int) -> int:
        """Return the number of the slice that holds a layer."""
        return next(number for number, end in enumerate(accumulate(self.counts)) if layer < end)


@dataclass(frozen=True, slots=True)
class Sharding:
    """Options of ZeRO 3 (FSDP): units of ``unit_layers`` layers, gathered ``prefetch`` units ahead of their use.

    ``reshard``: a unit is freed after its forward and gathered again for its backward. ``two_lanes``: gathers and
    reductions do not wait for each other. ``every_microbatch``: gradients are reduced in each microbatch's backward
    (also under ZeRO 2), not only in the last one's. ``by_matrix``: each matrix of a unit separately, as a list of one
    piece per rank, which cost the host ``piece`` seconds each; ``again``: all but the last are gathered twice for a
    backward.
    """

    unit_layers: int = 1
    prefetch: int = 1
    reshard: bool = True
    two_lanes: bool = False
    every_microbatch: bool = True
    by_matrix: bool = False
    piece: float = 0.0
    again: bool = False


ZeroStage = Literal[0, 1, 2, 3]


@dataclass(frozen=True, slots=True)
class DataParallel:
    """Options of data-parallel communication and the optimizer: ZeRO stage, overlap, bytes and times.

    ``gradient_bytes`` and ``parameter_bytes`` are per element on the wire; ``bucket_bytes`` is the size from which on a
    bucket of gradients is sent. ``optimizer_seconds``, ``norm_seconds`` and ``zero_seconds`` (zeroing the gradients,
    which the optimizer's include) are functions of the parameters they touch; ``buffer_seconds`` are what passes over
    all the gradients that a rank accumulates take before their reduction, and ``copy_seconds`` what ZeRO 3 copies on
    the GPU for each reduction, functions of parameters too. ``optimizer`` is None only where times are given.
    ``outer``: what workers that train separately sum periodically.
    """

    zero: ZeroStage
    overlap_reduce: bool
    overlap_gather: bool
    gradient_bytes: float
    parameter_bytes: float
    bucket_bytes: float
    optimizer_seconds: Callable[[float], float]
    norm_seconds: Callable[[float], float]
    sharding: Sharding = Sharding()
    zero_seconds: Callable[[float], float] = lambda parameters: 0.0
    buffer_seconds: Callable[[float], float] = lambda whole: 0.0
    copy_seconds: Callable[[float], float] = lambda parameters: 0.0
    optimizer: Optimizer | None = None
    outer: OuterUpdate | None = None


@dataclass(frozen=True, slots=True)
class Offload:
    """Activations and optimizer state that are kept in host memory, and how they are copied (see ``offload``).

    ``activations`` is the part of the bytes that F keeps of layers, which ``kept`` returns for their numbers, and
    ``ahead`` how many actions before their use they may come back. Every parameter has ``state_bytes`` of ``optimizer``
    state, and copies of its gradient and weight have these bytes; copies go in buckets of ``bucket`` parameters, of
    which ``buffers`` fit on the GPU, or the host moves ``update_bytes`` per parameter at ``host_rate`` (B/s, the rank's
    share).
    """

    activations: float = 0.0
    ahead: int = 1
    kept: Callable[[Sequence[int]], float] = lambda layers: 0.0
    optimizer: Literal["none", "stream", "host"] = "none"
    state_bytes: float = 0.0
    gradient_bytes: float = 0.0
    weight_bytes: float = 0.0
    update_bytes: float = 0.0
    host_rate: float = math.inf
    bucket: float = math.inf
    buffers: int = 2

    def buckets(self, parameters: float) -> int:
        """Return the number of optimizer buckets for this many parameters."""
        return max(1, math.ceil(parameters / self.bucket))

    def optimizer_on_gpu(self, parameters: float) -> float:
        """Return the bytes of optimizer state on the GPU for this many parameters."""
        match self.optimizer:
            case "none":
                return parameters * self.state_bytes
            case "stream":
                count = self.buckets(parameters)
                return min(self.buffers, count) / count * parameters * self.state_bytes
            case "host":
                return 0.0
        assert_never(self.optimizer)

    def optimizer_in_host(self, parameters: float) -> float:
        """Return the bytes of optimizer state, and gradients to update with, in host memory."""
        match self.optimizer:
            case "none":
                return 0.0
            case "stream":
                return parameters * self.state_bytes
            case "host":
                return parameters * (self.state_bytes + self.gradient_bytes)
        assert_never(self.optimizer)


class PassMaker(Protocol):
    """Maker of the op segments of a stage's passes; ``segments.Passes`` makes them from a model's kernels.

    Given times (``simcluster.studies.bench.given_times``) have none: they make whole programs.
    """

    def segment(self, kind: str, part: Pass) -> Segment: ...


@dataclass(frozen=True, slots=True)
class Job(Displayable):
    """Model, rank grid, schedule and options that decide the ops of all stages."""

    model: Model
    plan: Plan
    schedule: Schedule
    slices: Slices
    passes: PassMaker
    data_parallel: DataParallel
    send_bytes: float  # over a stage boundary, by each rank
    gather_boundary: bool  # is it sent split over tp and gathered on arrival?
    overlap_sends: bool
    steps: int
    rendezvous: bool = False  # do sender and receiver wait for each other, and for the end?
    offload: Offload = Offload()
    overlap_pairs: bool = False  # do the halves of a fused pair run beside each other?
    saved: SavedParts | None = None  # the checkpoint that is taken
    trains: bool = True  # or goes forward only, as a validation does
    casts: bool = False  # does the first F of a step on a chunk cast its weights?

    def forward_only(self) -> Job:
        """Return the job of a validation: only the forward passes, without gradients and optimizer."""
        gathers = self.data_parallel.zero == 3 and self.data_parallel.overlap_gather  # else parameters are there
        data = replace(self.data_parallel, overlap_reduce=False, overlap_gather=gathers)
        rows = tuple(tuple(action for action in row if action.kind == "F") for row in self.schedule.rows)
        schedule = replace(self.schedule, rows=rows, fused=())
        return replace(self, schedule=schedule, data_parallel=data, saved=None, steps=1, trains=False)

    def casting_actions(self, stage: int) -> frozenset[Action]:
        """Return the actions of a stage that cast weights to low precision: the first F of each chunk."""
        forwards = [action for action in self.schedule.rows[stage] if action.kind == "F"]
        first = {action.chunk: action for action in reversed(forwards)}
        return frozenset(first.values() if self.trains else ())

    @property
    def replicas(self) -> int:
        """Number of ranks that hold the same parameters: they sum gradients, or share optimizer state."""
        return self.plan.replicas

    @property
    def without_replicas(self) -> bool:
        """Whether no other rank holds any of a rank's parameters, its experts included."""
        return self.plan.replicas == 1 and self.plan.expert_replicas == 1

    def whole(self, stage: int, chunk: int) -> Pass:
        """Return all layers of a stage's chunk as one pass."""
        number = self.schedule.slice_of(stage, chunk)
        return self.slices.whole(number)


def balance_layers(
    seconds: Sequence[float], first: float, last: float, slices: int, *, empty_ends: bool = False
) -> Slices:
    """Partition layers with these times (s) into slices whose longest is as short as possible.

    ``first`` and ``last`` are the extra times of the first slice (embedding) and of the last (LM head, loss); with
    ``empty_ends`` these two may have no layers, every other has at least one. Among equally good cuts the one that is
    most even in the other slices. Raises InputError with too few layers for the slices.
    """
    layers = len(seconds)
    least = [1] * slices
    if empty_ends and slices > 1:
        least[0] = least[-1] = 0
    if layers < sum(least):
        raise InputError(
            f"{layers} layers cannot fill {slices} slices of the model: at least one layer each"
            + (" but for the first and the last" if empty_ends else "")
        )
    sums = [0.0, *accumulate(seconds)]

    # tables[number][end] is (longest, sum of squares, begin of the slice) of the best cut of the first ``end`` layers;
    # the squares decide between cuts with the same longest slice
    tables: list[dict[int, tuple[float, float, int]]] = [{0: (0.0, 0.0, 0)}]
    for number in range(slices):
        besides = (first if number == 0 else 0.0) + (last if number == slices - 1 else 0.0)
        known, found = tables[-1], {}
        for end in range(sum(least[: number + 1]), layers - sum(least[number + 1 :]) + 1):
            best: tuple[float, float, int] | None = None
            for begin in range(end - least[number], -1, -1):
                own = sums[end] - sums[begin] + besides
                if best is not None and own > best[0]:
                    break  # it only gets longer from here
                if begin in known:
                    longest, squares, _ = known[begin]
                    option = (max(longest, own), squares + own * own, begin)
                    best = option if best is None else min(best, option)
            if best is not None:
                found[end] = best
        tables.append(found)
    counts: list[int] = []
    end = layers
    for table in reversed(tables[1:]):
        begin = table[end][2]
        counts.append(end - begin)
        end = begin
    return Slices(tuple(reversed(counts)))
