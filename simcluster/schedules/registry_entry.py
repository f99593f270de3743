"""Registry entry of a pipeline schedule: the function that makes the schedule, and known properties.

Imports actions only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from simcluster.schedules.actions import Route, Schedule, snake_route


class ScheduleFunction(Protocol):
    """Interface of functions that make a schedule from the numbers of stages, microbatches and chunks."""

    def __call__(self, num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule: ...


Fact = Literal["takes_chunks", "needs_whole_groups", "depends_on_times", "tried_by_search", "validated"]


@dataclass(frozen=True, slots=True)
class ScheduleEntry:
    """Registry entry of a schedule: the function that makes the schedule, and properties used by rules and search.

    A fact at its default claims nothing: a schedule with ``make`` alone runs everywhere, and the search has a weaker
    bound for it. A claimed fact must hold for all counts, which the tests of all entries check.
    """

    make: ScheduleFunction
    route: Callable[[int, int], Route] | None = None
    """Route of all microbatches through (stages, chunks); None: there are several, or it is unknown."""
    splits_backward: bool = True
    """Whether backwards are split into I and W."""
    takes_chunks: bool = False
    """Whether the chunks per stage can be chosen; other schedules have a fixed number."""
    needs_whole_groups: bool = False
    """Whether microbatches run in groups of one per stage, so that their number must be a multiple of the stages."""
    depends_on_times: bool = False
    """Whether the order depends on the run's pass times."""
    first_forwards: Callable[[int, int, int, int], int] | None = None
    """Number of forwards before a stage's first backward, from (stages, microbatches, chunks, stage); None: unknown."""
    bubble_cost_of_low_memory: float | None = None
    """Cost, in bubbles of 1F1B, of holding fewer microbatches than 1F1B; None: it does not hold fewer."""
    tried_by_search: bool = False
    """Whether the layout search tries it by default: 1F1B, and what shortens its bubble at its memory (zb-h1, zb-v),
    with chunks (interleaved), or at half of it (v-half)."""
    validated: bool = False
    """Whether measured steps of it have been compared with predicted ones."""

    def __call__(self, num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
        """Make the schedule for these numbers of stages, microbatches and chunks."""
        return self.make(num_stages, num_microbatches, num_chunks)


def zigzag_route(num_stages: int, num_chunks: int) -> Route:
    """Return the route alternately down and up the stages, with one chunk per leg (at least two chunks)."""
    return snake_route(num_stages, max(2, num_chunks))
