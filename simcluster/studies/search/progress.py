"""What a search tells while it goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from simcluster.studies.search.space import Layout


class SearchState(NamedTuple):
    """How far a search is: what it is at, the best ``layout`` so far and its step (s), by what part another layout may
    be better than it at most, how many are played and how many may still have to be, seconds gone and left (None: not
    known yet).  ``first`` is the layout that is played first, since practice would try it, and it fits; a step of it
    takes ``first_time`` (s) at the least.  ``own``: the best so far is the scenario's own layout."""

    phase: str
    layout: Layout | None
    step_time: float
    gap: float | None
    played: int
    left: int | None
    seconds: float
    seconds_left: float | None
    first: Layout | None = None
    first_time: float = 0.0
    own: bool = False


Progress = Callable[[SearchState], object]


def say_nothing(state: SearchState) -> None:
    """For those who do not want to know how far it is."""
