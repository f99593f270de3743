"""Entry of a schedule in the list of schedules: the function that makes it, and facts known in advance.

Imports actions only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from simcluster.schedules.actions import Route, Schedule, snake_route


class ScheduleFunction(Protocol):
    """Function that makes a schedule: pure and deterministic; raises InputError for impossible counts."""

    def __call__(self, num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule: ...


Fact = Literal["takes_chunks", "in_groups", "made_for_times", "tried_by_search", "validated"]


@dataclass(frozen=True, slots=True)
class ScheduleEntry:
    """Schedule's function ``make`` and its facts, which rules, layout search and studies use.

    A fact at its default claims nothing: a schedule with ``make`` alone runs everywhere, and the search has a weaker
    bound for it. A claimed fact must hold for all counts, which the tests of all entries check.
    """

    make: ScheduleFunction
    route: Callable[[int, int], Route] | None = None
    """The one way of all microbatches through (stages, chunks); None: there are several, or it is not known."""
    splits_backward: bool = True
    """Are there backwards in two parts, I and W?"""
    takes_chunks: bool = False
    """Has it as many chunks a stage as one asks for?  Others have a number of their own."""
    in_groups: bool = False
    """Do microbatches go round the stages in groups of as many, so that several stages and whole groups are needed?"""
    made_for_times: bool = False
    """Is the order made for the times of the run, so that the order for other times says nothing about it?"""
    first_forwards: Callable[[int, int, int, int], int] | None = None
    """Forwards before the first backward of (stages, microbatches, chunks, stage); None: it is not known."""
    bubble_for_memory: float | None = None
    """Where it holds fewer microbatches than 1F1B: what that costs, roughly, in bubbles of 1F1B."""
    tried_by_search: bool = False
    """Does the search for a layout try it unless schedules are named?  1F1B, and what shortens its bubble at its memory
    (zb-h1, zb-v), with chunks (interleaved), or at half of it (v-half)."""
    validated: bool = False
    """Have measured steps of it been compared with predicted ones?"""

    def __call__(self, num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
        """Return the schedule for these counts of stages, microbatches and chunks."""
        return self.make(num_stages, num_microbatches, num_chunks)


def snake(num_stages: int, num_chunks: int) -> Route:
    """Return the route of a schedule that turns at the ends of the pipeline, with two or more chunks per stage."""
    return snake_route(num_stages, max(2, num_chunks))
