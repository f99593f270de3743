"""Registry entry of a pipeline schedule: the function that makes it, and its properties known in advance.

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
    """Registry entry of a schedule: the function ``make`` and known properties, for rules, search and studies.

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
    in_groups: bool = False
    """Whether microbatches pass the stages in groups as large as the stages, which must be several and whole."""
    made_for_times: bool = False
    """Whether the order depends on the run's pass times."""
    first_forwards: Callable[[int, int, int, int], int] | None = None
    """Forwards before the first backward of (stages, microbatches, chunks, stage); None: unknown."""
    bubble_for_memory: float | None = None
    """Cost, in bubbles of 1F1B, of holding fewer microbatches than 1F1B; None: it does not hold fewer."""
    tried_by_search: bool = False
    """Whether the layout search tries it by default: 1F1B, and what shortens its bubble at its memory (zb-h1, zb-v),
    with chunks (interleaved), or at half of it (v-half)."""
    validated: bool = False
    """Whether measured steps of it have been compared with predicted ones."""

    def __call__(self, num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
        """Return the schedule for these counts of stages, microbatches and chunks."""
        return self.make(num_stages, num_microbatches, num_chunks)


def zigzag(num_stages: int, num_chunks: int) -> Route:
    """Return the route of a schedule that turns at the ends of the pipeline, with two or more chunks per stage."""
    return snake_route(num_stages, max(2, num_chunks))
