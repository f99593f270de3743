"""Rivals of a winner: the played layouts against which it is explained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simcluster.studies.search.ranking import program
from simcluster.studies.search.space import Layout


def rivals(layouts: Sequence[Layout], scores: Mapping[int, float], winner: int, *, next_too: bool) -> list[int]:
    """Numbers of the best layout with another tp, and of that with another pp, than the winner's.

    With ``next_too`` the best of another program than the winner's comes before them.  ``scores`` are those of the
    layouts that had to be played.
    """
    played, own = sorted(scores, key=lambda number: (scores[number], number)), layouts[winner]
    others = [
        [number for number in played if getattr(layouts[number], axis) != getattr(own, axis)] for axis in ("tp", "pp")
    ]
    if next_too:
        name = program(own, scores[winner])
        others.insert(0, [number for number in played if program(layouts[number], scores[number]) != name])
    return [some[0] for some in others if some]


__all__ = ["rivals"]
