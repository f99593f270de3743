"""A step as it was recorded, or as it is played: what both have, so that the same functions measure either."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from simcluster.base.arrays import Bools, Floats
from simcluster.results.timeline import COLUMNS, Spans

PHASES = ("forward", "backward", "optimizer", "other")
"""What computation is for; what is recomputed is a part of backward, where a profiler sees it."""
PHASE_OF = {
    "forward": "forward", "recompute": "backward", "backward": "backward", "input_grad": "backward",
    "weight_grad": "backward", "optimizer": "optimizer",
}  # fmt: skip
COPIES = ("d2h", "h2d", "storage")
NANO = 1e-9
"""Profilers count whole nanoseconds, and so is a simulation asked."""
MESSAGE = "send_recv"
"""The kind of messages between stages: either half, or both in one kernel."""


class KernelTime(NamedTuple):
    """Kernels of one phase and kind: how many, and their seconds; means of a rank and step."""

    launches: float
    seconds: float


class Unmatched(NamedTuple):
    """A kernel that no pattern fits: its name, launches and seconds, means of a rank and step."""

    name: str
    launches: float
    seconds: float


@dataclass(frozen=True)
class StepSide:
    """Steps of some ranks.

    ``spans`` have the columns of a timeline; ``kind`` of computation is its phase, messages are ``MESSAGE``; what the
    host does is not among them.  ``step`` is the place of the step: it begins at ``begins[step]`` and takes
    ``lengths[step]`` seconds, until the next one begins.  ``weights[rank]`` is how many ranks one stands for.
    ``kernels`` are by phase and kind; ``launched`` is when the host launched each span, NaN where that is not known.
    """

    spans: Spans
    weights: Mapping[int, int]
    begins: Floats
    lengths: Floats
    kernels: Mapping[tuple[str, str], KernelTime]
    launched: Floats
    unmatched: tuple[Unmatched, ...] = ()
    notes: tuple[str, ...] = ()
    total: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", sum(self.weights.values()) * len(self.lengths))

    @property
    def seconds(self) -> float:
        """Of the mean step."""
        return float(self.lengths.mean())


def part_of(spans: Spans, keep: Bools, **columns: Any) -> Spans:
    """Some of the spans, with other columns where they are given."""
    found = {name: columns.get(name, getattr(spans, name))[keep] for name in ("op", *COLUMNS)}
    return Spans(spans.words, *found.values())
