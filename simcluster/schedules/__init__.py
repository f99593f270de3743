"""Pipeline schedules: a function per schedule that returns data, a checker, and the exact timing of that data.

To add one: write ``mine(num_stages, num_microbatches, num_chunks=1) -> Schedule`` in its own file and name it in
SCHEDULES; the tests of every schedule then run on it.  Planning only: imports nothing of simcluster but its errors.
"""

from __future__ import annotations

from typing import Protocol

from simcluster.errors import InputError
from simcluster.schedules.actions import Action, Hop, Kind, Route, Schedule
from simcluster.schedules.check import check
from simcluster.schedules.gpipe import gpipe
from simcluster.schedules.interleaved import interleaved
from simcluster.schedules.one_f_one_b import one_f_one_b
from simcluster.schedules.timing import Costs, ScheduleTiming, peak_in_flight, play

__all__ = [
    "SCHEDULES",
    "Action",
    "Costs",
    "Hop",
    "Kind",
    "Route",
    "Schedule",
    "ScheduleFunction",
    "ScheduleTiming",
    "check",
    "gpipe",
    "interleaved",
    "one_f_one_b",
    "peak_in_flight",
    "play",
    "schedule_function",
]


class ScheduleFunction(Protocol):
    """What a schedule is made by: pure, deterministic, InputError where it cannot be made."""

    def __call__(self, num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule: ...


SCHEDULES: dict[str, ScheduleFunction] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
}
"""Every schedule that has a name."""


def schedule_function(name: str) -> ScheduleFunction:
    """The function behind a schedule's name; InputError with the names that exist, and the nearest, if it is none."""
    if name in SCHEDULES:
        return SCHEDULES[name]
    import difflib  # only for a mistake

    near = difflib.get_close_matches(name.lower(), SCHEDULES, n=1)
    guess = f"did you mean {near[0]!r}? " if near else ""
    raise InputError(f"unknown schedule {name!r}; {guess}the schedules are {', '.join(SCHEDULES)}")
