"""Copies between GPU and host memory, and checkpoints: bytes, overlapped time and exposed time.

The backward pass of a microbatch is delayed by max(0, end of its copy - end of its other inputs). That is how long the
rank waited, which the breakdown of the step derives from the timeline alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from simcluster.base.units import format_bytes, format_seconds
from simcluster.results.overlap import RankIntervals
from simcluster.results.timeline import Spans


@dataclass(frozen=True, slots=True)
class StepCheckpoint:
    """Measurements of the checkpoint that the simulated steps include.

    Training stops for ``stands_s`` from the first rank's begin to the barrier; ``bytes`` of the whole job are written
    (``place``: to storage, or to peers' memory) in ``write_s``, of which ``beside_s`` overlap with the steps that
    follow and ``behind_s`` are after the last one. ``step_s`` is the mean of those steps (None without any).
    """

    after: int
    stands_s: float
    bytes: float
    write_s: float
    beside_s: float
    behind_s: float
    step_s: float | None
    place: str = "storage"

    def to_dict(self) -> dict[str, Any]:
        """Return the checkpoint's section of the result JSON."""
        return asdict(self)

    def summary_lines(self) -> list[str]:
        """Return the lines about the checkpoint that ``simcluster run`` prints."""
        where = "copied to peers' memory" if self.place == "peers" else "written"
        written = f"{format_bytes(self.bytes)} are {where} in {format_seconds(self.write_s)}"
        beside = f", {format_seconds(self.beside_s)} of it overlapped with training" if self.beside_s > 0 else ""
        found = [
            f"  checkpoint   after step {self.after} training stops for {format_seconds(self.stands_s)}",
            f"               {written}{beside}",
        ]
        if self.step_s is not None:
            found.append(f"               the following steps take {format_seconds(self.step_s)} each")
        if self.behind_s > 0:
            found.append(
                f"               the last {format_seconds(self.behind_s)} are after the last step; simulate more steps"
            )
        return found


def measure_checkpoint(
    spans: Spans, weights: Mapping[int, int], *, after: int, steps: int, target: str
) -> StepCheckpoint:
    """Measure the checkpoint that is taken after a step, from the spans of the simulated ranks."""
    own = spans.kind == spans.word_code("checkpoint")
    own &= spans.step == after
    writes = own & (spans.stream == spans.word_code("storage"))
    barrier = float(spans.start[own & (spans.name == spans.word_code("barrier"))].max())
    begun, ended = float(spans.start[writes].min()), float(spans.end[writes].max())
    worked = float(spans.end[spans.stream != spans.word_code("storage")].max())
    many = np.array([weights.get(rank, 0) for rank in range(max(weights) + 1)])
    later = steps - 1 - after
    return StepCheckpoint(
        after=after,
        stands_s=barrier - float(spans.start[own].min()),
        bytes=float((spans.bytes * many[spans.rank])[writes].sum()),
        write_s=ended - begun,
        beside_s=max(0.0, min(ended, worked) - max(begun, barrier)),
        behind_s=max(0.0, ended - max(worked, barrier)),
        step_s=(worked - barrier) / later if later else None,
        place=target,
    )


def measure_copies(spans: Spans, weights: Mapping[int, int], direction: str, *, steps: int) -> dict[str, float]:
    """Return bytes, wire seconds and overlapped seconds of offload copies in one direction, per rank and step."""
    found = np.zeros(3)
    for rank, weight in weights.items():
        own = spans.of_rank(rank)
        offloaded = (own.stream == own.word_code(direction)) & (own.kind == own.word_code("copy"))  # no checkpoint
        measured = RankIntervals(own, own.end - own.start).measure_overlap(offloaded)
        found += weight * measured[1:4]
    return dict(zip(("bytes", "wire_s", "hidden_s"), (found / (sum(weights.values()) * steps)).tolist(), strict=True))


def peak_host_activations(spans: Spans, rank: int) -> float:
    """Return the most bytes of offloaded activations that one rank holds in host memory."""
    own = spans.of_rank(rank)
    of_microbatch = own.microbatch >= 0
    out = of_microbatch & (own.stream == own.word_code("d2h"))
    back = of_microbatch & (own.stream == own.word_code("h2d"))
    time = np.concatenate([own.start[out], own.end[back]])
    change = np.concatenate([own.bytes[out], -own.bytes[back]])
    order = np.lexsort((change, time))
    return float(np.cumsum(change[order]).max(initial=0.0))
