"""What a checkpoint came to that was taken in a step: how long training stood, and what the write took beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from simcluster.base.units import format_bytes, format_seconds
from simcluster.results.timeline import Spans


@dataclass(frozen=True, slots=True)
class PlayedCheckpoint:
    """A checkpoint behind the step ``after``: training stands for ``stands_s`` from the first rank's begin to the
    barrier; ``bytes`` of the whole job are written (``place``: to storage, or to peers' memory) in ``write_s``, of
    which ``beside_s`` lie beside the steps that follow and ``behind_s`` behind the last one.  ``step_s`` is the mean of
    those steps (nothing without any)."""

    after: int
    stands_s: float
    bytes: float
    write_s: float
    beside_s: float
    behind_s: float
    step_s: float | None
    place: str = "storage"

    def to_dict(self) -> dict[str, Any]:
        """As the result JSON has it."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For the summary of a run."""
        where = "copied to peers' memory" if self.place == "peers" else "written"
        written = f"{format_bytes(self.bytes)} are {where} in {format_seconds(self.write_s)}"
        beside = f", {format_seconds(self.beside_s)} of it beside training" if self.beside_s > 0 else ""
        found = [
            f"  checkpoint   behind step {self.after} training stands for {format_seconds(self.stands_s)}",
            f"               {written}{beside}",
        ]
        if self.step_s is not None:
            found.append(f"               the steps that follow take {format_seconds(self.step_s)} each")
        if self.behind_s > 0:
            found.append(
                f"               {format_seconds(self.behind_s)} are behind the last step: more steps show them"
            )
        return found


def played_checkpoint(
    spans: Spans, weights: Mapping[int, int], *, after: int, steps: int, place: str
) -> PlayedCheckpoint:
    """What the spans say of the checkpoint that they have; ``weights[rank]`` is how many ranks one stands for."""
    own = spans.kind == spans.code("checkpoint")
    own &= spans.step == after
    writes = own & (spans.stream == spans.code("storage"))
    barrier = float(spans.start[own & (spans.name == spans.code("barrier"))].max())
    begun, ended = float(spans.start[writes].min()), float(spans.end[writes].max())
    worked = float(spans.end[spans.stream != spans.code("storage")].max())
    many = np.array([weights.get(rank, 0) for rank in range(max(weights) + 1)])
    later = steps - 1 - after
    return PlayedCheckpoint(
        after=after,
        stands_s=barrier - float(spans.start[own].min()),
        bytes=float((spans.bytes * many[spans.rank])[writes].sum()),
        write_s=ended - begun,
        beside_s=max(0.0, min(ended, worked) - max(begun, barrier)),
        behind_s=max(0.0, ended - max(worked, barrier)),
        step_s=(worked - barrier) / later if later else None,
        place=place,
    )
