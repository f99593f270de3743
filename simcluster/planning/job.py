"""The training job to plan: model, slices, rank grid, schedule, parallelism and offloading.

Pure data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal, assert_never

from simcluster.base.display import Displayable
from simcluster.base.errors import InputError
from simcluster.model.transformer import Model
from simcluster.planning.checkpoint import SimulatedCheckpoint
from simcluster.planning.optimizer import Optimizer, OuterOptimizerStep
from simcluster.planning.pass_segments import CachedPassSegmentMaker, PassLayers
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.schedules import Action, Schedule


@dataclass(frozen=True, slots=True)
class ModelSlices:
    """Partition of the model's layers into consecutive slices (virtual stages), as layer counts in model order.

    ``predicted`` are the layers of multi-token prediction if a slice other than the last, ``prediction``, has them;
    ``encoder`` are those of an encoder, which the first slice has in front.
    """

    counts: tuple[int, ...]
    predicted: tuple[int, ...] = ()
    prediction: int = -1
    encoder: tuple[int, ...] = ()

    @classmethod
    def split_evenly(cls, layers: int, slices: int) -> ModelSlices:
        """Split the layers into slices of equal length; raise InputError if they do not divide evenly."""
        if layers % slices:
            raise InputError(f"{layers} layers do not divide evenly over {slices} slices; use a multiple of {slices}")
        return cls((layers // slices,) * slices)

    @classmethod
    def split_nearly_evenly(cls, layers: int, slices: int) -> ModelSlices:
        """Split the layers into slices that differ by at most one layer; longer slices come first."""
        return cls(tuple(layers // slices + (number < layers % slices) for number in range(slices)))

    @classmethod
    def from_stage_layers(cls, layers: Sequence[int], schedule: Schedule) -> ModelSlices:
        """Split the model so that each stage has ``layers[stage]`` layers, spread evenly over the stage's chunks.

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

    def layers_of_slice(self, number: int) -> tuple[int, ...]:
        """Return the numbers of the layers in one slice of the model."""
        first = sum(self.counts[:number])
        predicted = self.predicted if number == self.prediction else ()
        return (*(self.encoder if number == 0 else ()), *range(first, first + self.counts[number]), *predicted)

    def pass_over_slice(self, number: int) -> PassLayers:
        """Return the layers of a slice as one pass, including embedding and LM head if the slice has them."""
        return PassLayers(self.layers_of_slice(number), number == 0, number == len(self.counts) - 1)


@dataclass(frozen=True, slots=True)
class FsdpOptions:
    """Options of ZeRO 3 (FSDP): layers per unit, number of units gathered ahead of use, and resharding.

    ``reshard_after_forward``: a unit is freed after its forward and gathered again for its backward. With
    ``uses_two_lanes`` gathers and reductions do not wait for each other. ``reduce_every_microbatch``: gradients are
    reduced in each microbatch's backward (also under ZeRO 2), not only in the last one's. ``gather_by_matrix``: each
    matrix of a unit separately, as a list of one piece per rank, which cost the host ``piece_seconds`` each;
    ``gathers_twice``: all but the last are gathered twice for a backward.
    """

    unit_layers: int = 1
    prefetch: int = 1
    reshard_after_forward: bool = True
    uses_two_lanes: bool = False
    reduce_every_microbatch: bool = True
    gather_by_matrix: bool = False
    piece_seconds: float = 0.0
    gathers_twice: bool = False


ZeroStage = Literal[0, 1, 2, 3]


@dataclass(frozen=True, slots=True)
class DataParallelOptions:
    """Options of data-parallel communication and of the optimizer: ZeRO stage, overlap, bytes and times.

    ``gradient_bytes`` and ``parameter_bytes`` are per element on the wire; ``bucket_bytes`` is the size from which on a
    bucket of gradients is sent. ``optimizer_seconds``, ``norm_seconds`` and ``zero_seconds`` (zeroing the gradients,
    which the optimizer's include) are functions of the parameters they touch; ``buffer_seconds`` are what passes over
    all the gradients that a rank accumulates take before their reduction, and ``copy_seconds`` what ZeRO 3 copies on
    the GPU for each reduction, functions of parameters too. ``optimizer`` is None only where times are given.
    ``outer_step``: what workers that train separately sum periodically.
    """

    zero: ZeroStage
    overlap_reduce: bool
    overlap_gather: bool
    gradient_bytes: float
    parameter_bytes: float
    bucket_bytes: float
    optimizer_seconds: Callable[[float], float]
    norm_seconds: Callable[[float], float]
    fsdp: FsdpOptions = FsdpOptions()
    zero_seconds: Callable[[float], float] = lambda parameters: 0.0
    buffer_seconds: Callable[[float], float] = lambda whole: 0.0
    copy_seconds: Callable[[float, float], float] = lambda parameters, gathered: 0.0
    optimizer: Optimizer | None = None
    outer_step: OuterOptimizerStep | None = None


@dataclass(frozen=True, slots=True)
class OffloadOptions:
    """Options for offloading activations and optimizer state to host memory.

    ``activations`` is the part of the bytes that F keeps of layers, which ``kept_bytes_of_layers`` returns for their
    numbers, and ``prefetch_actions`` how many actions before their use they may come back. Every parameter has
    ``state_bytes`` of ``optimizer`` state, and copies of its gradient and weight have these bytes; copies go in buckets
    of ``bucket`` parameters, of which ``buffers`` fit on the GPU, or the host moves ``update_bytes`` per parameter at
    ``host_rate`` (B/s, the rank's share).
    """

    activations: float = 0.0
    prefetch_actions: int = 1
    kept_bytes_of_layers: Callable[[Sequence[int]], float] = lambda layers: 0.0
    optimizer: Literal["none", "stream", "host"] = "none"
    state_bytes: float = 0.0
    gradient_bytes: float = 0.0
    weight_bytes: float = 0.0
    update_bytes: float = 0.0
    host_rate: float = math.inf
    bucket: float = math.inf
    buffers: int = 2

    def count_buckets(self, parameters: float) -> int:
        """Return the number of buckets into which the optimizer state of this many parameters is split."""
        return max(1, math.ceil(parameters / self.bucket))

    def optimizer_bytes_on_gpu(self, parameters: float) -> float:
        """Return the bytes of optimizer state on the GPU for this many parameters."""
        match self.optimizer:
            case "none":
                return parameters * self.state_bytes
            case "stream":
                count = self.count_buckets(parameters)
                return min(self.buffers, count) / count * parameters * self.state_bytes
            case "host":
                return 0.0
        assert_never(self.optimizer)

    def optimizer_bytes_on_host(self, parameters: float) -> float:
        """Return the host-memory bytes of optimizer state (and of gradients, if the CPU updates) for N parameters."""
        match self.optimizer:
            case "none":
                return 0.0
            case "stream":
                return parameters * self.state_bytes
            case "host":
                return parameters * (self.state_bytes + self.gradient_bytes)
        assert_never(self.optimizer)


@dataclass(frozen=True, slots=True)
class Job(Displayable):
    """Training job to plan: model, rank grid, schedule and options, from which the ops of all stages follow."""

    model: Model
    plan: ParallelPlan
    schedule: Schedule
    slices: ModelSlices
    pass_maker: CachedPassSegmentMaker
    data_parallel: DataParallelOptions
    send_bytes: float  # over a stage boundary, by each rank
    gather_boundary: bool  # is it sent split over tp and gathered on arrival?
    overlap_sends: bool
    steps: int
    rendezvous: bool = False  # do sender and receiver wait for each other, and for the end?
    offload: OffloadOptions = OffloadOptions()
    overlap_pairs: bool = False  # do the halves of a fused pair run beside each other?
    checkpoint: SimulatedCheckpoint | None = None  # the checkpoint that is taken
    trains: bool = True  # or goes forward only, as a validation does
    casts_weights: bool = False  # does the first F of a step on a chunk cast its weights?

    def forward_only_job(self) -> Job:
        """Return the job of one validation, which runs only forward passes, without gradients or optimizer."""
        gathers = self.data_parallel.zero == 3 and self.data_parallel.overlap_gather  # else parameters are there
        data = replace(self.data_parallel, overlap_reduce=False, overlap_gather=gathers)
        rows = tuple(tuple(action for action in row if action.kind == "F") for row in self.schedule.rows)
        schedule = replace(self.schedule, rows=rows, fused=())
        return replace(self, schedule=schedule, data_parallel=data, checkpoint=None, steps=1, trains=False)

    def casting_actions(self, stage: int) -> frozenset[Action]:
        """Return a stage's actions that also cast weights to low precision: the first forward of each chunk."""
        forwards = [action for action in self.schedule.rows[stage] if action.kind == "F"]
        first = {action.chunk: action for action in reversed(forwards)}
        return frozenset(first.values() if self.trains else ())

    @property
    def replicas(self) -> int:
        """Number of ranks that hold the same parameters, over which gradients are reduced."""
        return self.plan.replicas

    @property
    def has_no_replicas(self) -> bool:
        """Whether no parameter, expert parameters included, has a copy on another rank."""
        return self.plan.replicas == 1 and self.plan.expert_replicas == 1

    def sent_bytes(self, boundary: int) -> float:
        """Return the bytes that a rank sends from slice ``boundary`` to the next, or back.

        After a separate slice of multi-token prediction, hidden states of each of its layers travel, too.
        """
        behind = self.slices.predicted and boundary >= self.slices.prediction
        return self.send_bytes * (1 + len(self.slices.predicted) * bool(behind))

    def pass_over_chunk(self, stage: int, chunk: int) -> PassLayers:
        """Return all layers of a stage's chunk as one pass."""
        number = self.schedule.model_slice(stage, chunk)
        return self.slices.pass_over_slice(number)


def balance_layers(
    seconds: Sequence[float], first: float, last: float, slices: int, *, empty_ends: bool = False
) -> ModelSlices:
    """Split layers with these times (s) into slices, minimizing the time of the slowest slice.

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
            f"{layers} layers are too few for {slices} slices of the model, which need at least one layer each"
            + (" (except the first and the last); use fewer" if empty_ends else "; use fewer slices")
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
    return ModelSlices(tuple(reversed(counts)))
