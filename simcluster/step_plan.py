"""Everything that decides the programs of a step: the model and its slices, the plan, the schedule, how things travel.

Pure data; imports the model, the plan, schedules and segments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from simcluster.errors import InputError
from simcluster.model import Model
from simcluster.ops import Segment
from simcluster.parallel import Plan
from simcluster.schedules import Schedule
from simcluster.segments import Pass


@dataclass(frozen=True, slots=True)
class Slices:
    """How the layers of the model are cut: ``counts[s]`` layers in slice (virtual stage) s, in the model's order."""

    counts: tuple[int, ...]

    @classmethod
    def even(cls, layers: int, slices: int) -> Slices:
        """As many layers in each; InputError where that does not go."""
        if layers % slices:
            raise InputError(f"{layers} layers do not divide over {slices} slices of equally many")
        return cls((layers // slices,) * slices)

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return sum(self.counts)

    def of(self, number: int) -> tuple[int, ...]:
        """Global numbers of the layers in one slice."""
        first = sum(self.counts[:number])
        return tuple(range(first, first + self.counts[number]))

    def slice_of(self, layer: int) -> int:
        """The slice that holds this layer."""
        return next(number for number, end in enumerate(accumulate(self.counts)) if layer < end)


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
    slices: Slices
    passes: PassMaker
    data_parallel: DataParallel
    send_bytes: float  # over a stage boundary, by each rank
    gather_boundary: bool  # is it sent split over tp and gathered on arrival?
    overlap_sends: bool
    steps: int

    @property
    def replicas(self) -> int:
        """Ranks that hold the same parameters: they sum their gradients, or share the state between them."""
        return self.plan.dp * self.plan.cp

    def whole(self, stage: int, chunk: int) -> Pass:
        """All that a chunk of a stage holds, as one pass."""
        number = self.schedule.slice_of(stage, chunk)
        return Pass(self.slices.of(number), number == 0, number == len(self.slices.counts) - 1)


def balanced(seconds: Sequence[float], first: float, last: float, slices: int) -> Slices:
    """The cut of layers of these times into slices whose longest is shortest.

    ``first`` and ``last`` are what the first slice does besides (embedding) and the last (LM head, loss).  Every slice
    has a layer.  Among equally good cuts the one that is most even in the other slices: later slices take no more than
    they must.  Raises InputError with fewer layers than slices.
    """
    layers = len(seconds)
    if layers < slices:
        raise InputError(f"{layers} layers cannot fill {slices} slices of the model: at least one layer each")
    sums = [0.0, *accumulate(seconds)]

    def cost(begin: int, end: int, number: int) -> float:
        return sums[end] - sums[begin] + (first if number == 0 else 0.0) + (last if number == slices - 1 else 0.0)

    # best[end] is (longest, sum of squares, cut): the squares decide between cuts with the same longest slice
    best: dict[int, tuple[float, float, tuple[int, ...]]] = {0: (0.0, 0.0, ())}
    for number in range(slices):
        found: dict[int, tuple[float, float, tuple[int, ...]]] = {}
        for end in range(number + 1, layers - (slices - number - 1) + 1):
            options = []
            for begin, (longest, squares, cut) in best.items():
                if begin < end:
                    own = cost(begin, end, number)
                    options.append((max(longest, own), squares + own * own, (*cut, end - begin)))
            found[end] = min(options)
        best = found
    return Slices(best[layers][2])
