"""Who waits for whom in a recorded job, in words, as JSON and as a picture: for replays of traces and of profiles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcluster.cli.common import format_table

if TYPE_CHECKING:
    from simcluster.replay import Recorded
    from simcluster.replay.trace import Floats

_WAITS = 5


def waits_table(ranks: Sequence[int], seconds: Floats) -> list[str]:
    """The longest waits of a rank for another."""
    from simcluster.replay.waiting import longest
    from simcluster.units import format_seconds

    found = longest(seconds, _WAITS)
    if not found:
        return []
    rows = [[f"rank {ranks[one]}", f"rank {ranks[other]}", format_seconds(each)] for one, other, each in found]
    return ["the longest waits, in all, a step", *format_table(["who", "for", "seconds"], rows).splitlines()]


def waits_document(ranks: Sequence[int], seconds: Floats) -> list[dict[str, Any]]:
    """All waits for JSON, longest first."""
    from simcluster.replay.waiting import longest

    return [
        {"rank": ranks[one], "culprit": ranks[other], "seconds": each}
        for one, other, each in longest(seconds, seconds.size)
    ]


def draw_waits(job: Recorded, path: Path) -> None:
    """The matrix as a picture."""
    from simcluster.replay.waiting import recorded_matrix
    from simcluster.show.gantt import save_figure
    from simcluster.show.wait_plot import plot_waits

    save_figure(plot_waits(recorded_matrix(job), title=f"{job.name}, replayed: who waits for whom"), path)
