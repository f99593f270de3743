"""User-supplied pipeline times (s) per microbatch and stage or model slice, instead of computed times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real

from simcluster.base.errors import InputError
from simcluster.base.progress import check_estimated_time, format_rough_duration
from simcluster.documents.argument_types import check_constructor_arguments
from simcluster.documents.diagnostics import quote_value
from simcluster.schedules import Kind, Schedule
from simcluster.schedules.zb_auto import Times

_MOST_BUCKETS = 100_000
_SECONDS_PER_PASS = 12e-6
"""CPU seconds per pass of a stage, from planning to span, in short steps; 5e-6 in steps of 500 microbatches."""


@check_constructor_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """User-supplied times (s) of one microbatch on one stage or model slice: compute and communication.

    ``weight_grad`` is the part of ``backward`` that is W where the schedule splits it (default: half).
    ``tensor_parallel`` is one blocking collective over tp, of which F and B have ``collectives`` each; ``send`` one
    stage boundary, overlapped with computation, ``send_back`` that of a gradient where it takes another time (to the
    slice before, over another boundary); ``grad_reduce`` the reduction over dp: blocking after the last B or, with
    ``grad_buckets``, in that many equal parts overlapped with the last B (or W) of each chunk, each sent as soon as the
    backward has made its gradients; the optimizer waits for them all. ``launch`` is what the host adds to every pass
    (F, B, I or W), ``send_launch`` what it adds to a pass for the message after it.
    """

    forward: float
    backward: float
    tensor_parallel: float = 0.0
    collectives: int = 2
    weight_grad: float | None = None
    send: float = 0.0
    send_back: float | None = None
    grad_reduce: float = 0.0
    grad_buckets: int = 0
    optimizer: float = 0.0
    launch: float = 0.0
    send_launch: float = 0.0

    def __post_init__(self) -> None:
        if self.weight_grad is not None:
            require_valid_seconds("weight_grad", self.weight_grad)
            require_valid_seconds("backward", self.backward)
        if self.weight_grad is not None and not 0 <= self.weight_grad <= self.backward:
            raise InputError(
                f"weight_grad must be from 0 to 'backward' = {self.backward!r}, its total; got {self.weight_grad!r}"
            )
        for field in fields(self):
            if field.name not in ("weight_grad", "send_back", "collectives", "grad_buckets"):
                require_valid_seconds(field.name, getattr(self, field.name))
        require_valid_seconds("send_back", self.send_seconds("B"))
        if not isinstance(self.collectives, Integral) or self.collectives < 0:
            raise InputError(f"collectives must be a whole number per F and B, 0 or more; got {self.collectives!r}")
        if not isinstance(self.grad_buckets, int) or not 0 <= self.grad_buckets <= _MOST_BUCKETS:
            raise InputError(
                f"grad_buckets must be the number of parts (1 to {_MOST_BUCKETS:,}) in which gradients are reduced "
                f"during the backward, or 0 to reduce them after the backward; got {self.grad_buckets!r}"
            )

    def send_seconds(self, made: str) -> float:
        """Return the time (s) to send the output of a forward ("F") or of a backward ("B")."""
        return self.send if made == "F" or self.send_back is None else self.send_back

    def pass_seconds(self, kind: Kind) -> float:
        """Return the compute time (s) of one pass (F, B, I or W), without launch overhead."""
        weight = self.backward / 2 if self.weight_grad is None else self.weight_grad
        return {"F": self.forward, "B": self.backward, "I": self.backward - weight, "W": weight}[kind]


def require_valid_seconds(name: str, value: float) -> None:
    """Raise InputError unless this time (s) is a finite number of at least 0."""
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise InputError(f"{name} must be a finite number of seconds, 0 or more, as in 0.002; got {quote_value(value)}")


class ChunkCosts:
    """User-supplied times of every chunk on every stage, for a schedule that places model slices on stages.

    One Costs holds for every whole stage, whose chunks share it evenly. A sequence has one for each slice of the model
    (virtual stage) in forward order, on any stage.
    """

    def __init__(self, costs: Costs | Sequence[Costs], schedule: Schedule) -> None:
        self._schedule = schedule
        self._costs = costs if isinstance(costs, Costs) else tuple(costs)
        depth = len(schedule.routes[0])
        # a second copy of the model (two routes) does not make chunks smaller
        self._share = schedule.num_stages / depth
        if not isinstance(self._costs, Costs):
            require_costs_per_slice(self._costs, depth, schedule.name)

    def chunk_costs(self, stage: int, chunk: int) -> Costs:
        """Return the user-supplied Costs that apply to a chunk of a stage."""
        if isinstance(self._costs, Costs):
            return self._costs
        route = next(route for route in self._schedule.routes if (stage, chunk) in route)
        return self._costs[route.index((stage, chunk))]

    def chunk_pass_seconds(self, kind: Kind, stage: int, chunk: int) -> float:
        """Return the compute time (s) of one pass of a stage's chunk, including launch overhead."""
        costs = self.chunk_costs(stage, chunk)
        share = self._share if isinstance(self._costs, Costs) else 1.0
        return costs.pass_seconds(kind) * share + costs.launch

    def seconds_after_pipeline(self, stage: int) -> tuple[float, float]:
        """Return a stage's times (s) after the last backward: blocking gradient reduction, and optimizer."""
        if isinstance(self._costs, Costs):
            return 0.0 if self._costs.grad_buckets else self._costs.grad_reduce, self._costs.optimizer
        here = [self.chunk_costs(stage, chunk) for chunk in range(self._schedule.num_chunks)]
        blocking = math.fsum(each.grad_reduce for each in here if not each.grad_buckets)
        return blocking, math.fsum(each.optimizer for each in here)

    def chunk_grad_buckets(self, stage: int, chunk: int) -> tuple[int, float]:
        """Return a chunk's number of overlapped gradient buckets, and the reduction time (s) per bucket; or (0, 0)."""
        costs = self.chunk_costs(stage, chunk)
        if not costs.grad_buckets or not costs.grad_reduce:
            return 0, 0.0
        share = 1 / self._schedule.num_chunks if isinstance(self._costs, Costs) else 1.0
        return costs.grad_buckets, costs.grad_reduce * share / costs.grad_buckets


def require_costs_per_slice(slices: Sequence[Costs], depth: int, name: str) -> None:
    """Raise InputError unless there is one Costs for each slice of the model."""
    if len(slices) != depth:
        raise InputError(
            f"got {len(slices)} Costs for the {depth} slices (stages x chunks) of schedule {name!r}; pass one per "
            "slice in forward order, or a single Costs for equal stages"
        )


def times_for_scheduling(costs: Costs | Sequence[Costs], stages: int) -> tuple[Times, float]:
    """Return pass times by (kind, stage, chunk), and the time of one send, to optimize a schedule for.

    Such schedules have one slice per stage.
    """
    if isinstance(costs, Costs):
        return (lambda kind, stage, chunk: costs.pass_seconds(kind)), costs.send
    parts = tuple(costs)
    if not parts or len(parts) % stages:
        require_costs_per_slice(parts, stages, "to be made")
    return (lambda kind, stage, chunk: parts[chunk * stages + stage].pass_seconds(kind)), max(one.send for one in parts)


def slowdown_of_every_rank(slowness: Mapping[int, float], ranks: int) -> list[float]:
    """Return the compute slowdown factor of every rank; raise InputError for an unknown rank or invalid factor."""
    found = [1.0] * ranks
    for rank, factor in slowness.items():
        if rank not in range(ranks) or not 0 < factor < math.inf:
            rule = f"must map ranks (0 to {ranks - 1}) to positive factors, as in {{0: 1.1}}"
            raise InputError(f"slowness {rule}; got {{{rank}: {factor}}}")
        found[rank] = factor
    return found


def require_valid_steps(steps: int, optimizer_sync: str, sync: float) -> None:
    """Raise InputError if the number of steps or the synchronization of the optimizer is invalid."""
    if steps < 1:
        raise InputError(f"steps must be at least 1; got {steps!r}")
    if optimizer_sync not in ("all_reduce", "post_validation"):
        raise InputError(f"optimizer_sync must be 'all_reduce' or 'post_validation'; got {optimizer_sync!r}")
    require_valid_seconds("sync", sync)


def require_short_simulation(schedule: Schedule, steps: int, differing: int) -> None:
    """Raise InputError if simulating a schedule would exceed the time limit."""
    seconds = _SECONDS_PER_PASS * sum(map(len, schedule.rows)) * steps * differing
    several = f" with {differing:,} differing ranks each" if differing > 1 else ""
    check_estimated_time(
        seconds,
        f"steps: {steps:,} steps of {schedule.num_microbatches:,} microbatches on {schedule.num_stages:,} "
        f"stages{several} would take about {format_rough_duration(seconds)} to plan and simulate",
        "use fewer",
    )
