"""A segment's events where nothing moves over links and nothing presses on computation."""

from __future__ import annotations

from collections.abc import Callable

from simcluster.planning.ops import Op, Segment
from simcluster.programs.collapse import ChainPiece, collapse


def pieces(segment: Segment, duration: Callable[[Op], float | None]) -> tuple[ChainPiece, ...]:
    """The segment collapsed."""
    seconds = [duration(one) for one in segment.ops]
    return collapse(segment, seconds, [-1] * len(seconds), (), "chains").pieces
