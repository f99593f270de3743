"""Built-in pipeline schedules by name, with a validity checker and an exact timing of their passes.

To add one, write ``mine(num_stages, num_microbatches, num_chunks=1) -> Schedule`` in a separate file, and the line
``"mine": ScheduleEntry(mine)`` in SCHEDULES; the tests of every schedule then run on it. A schedule that is not built
in needs no name: ``make_schedule`` takes the function, or the Schedule itself. Imports nothing of simcluster but its
errors (``specs``, which a scenario file needs, also the base of documents).
"""

from __future__ import annotations

import inspect
from typing import Any, Protocol

from simcluster.base.errors import InputError
from simcluster.base.texts import find_similar_words
from simcluster.documents.diagnostics import reject_argument, type_name
from simcluster.schedules.actions import Action, Hop, Kind, Schedule, loop_route
from simcluster.schedules.check import check_schedule
from simcluster.schedules.chimera_and_dualpipe import chimera, dualpipe, dualpipe_v
from simcluster.schedules.gpipe import breadth_first, gpipe
from simcluster.schedules.hanayo import hanayo
from simcluster.schedules.interleaved import interleaved, interleaved_first_forwards
from simcluster.schedules.one_f_one_b import one_f_one_b, one_f_one_b_first_forwards
from simcluster.schedules.registry_entry import Fact, ScheduleEntry, ScheduleFunction, zigzag_route
from simcluster.schedules.timing import EqualCosts, SliceCosts, peak_in_flight, time_actions
from simcluster.schedules.v_half_and_v_min import v_half, v_half_first_forwards, v_min, v_min_first_forwards
from simcluster.schedules.zb_auto import Times, zb_auto
from simcluster.schedules.zb_handcrafted import zb_h1, zb_h2, zb_v, zb_v_first_forwards

__all__ = [
    "SCHEDULES",
    "Action",
    "EqualCosts",
    "Hop",
    "Kind",
    "Schedule",
    "ScheduleEntry",
    "ScheduleFunction",
    "SliceCosts",
    "breadth_first",
    "check_schedule",
    "chimera",
    "dualpipe",
    "dualpipe_v",
    "gpipe",
    "hanayo",
    "interleaved",
    "make_schedule",
    "one_f_one_b",
    "peak_in_flight",
    "schedule_entry",
    "schedules_with",
    "time_actions",
    "v_half",
    "v_min",
    "zb_auto",
    "zb_h1",
    "zb_h2",
    "zb_v",
]


SCHEDULES: dict[str, ScheduleEntry] = {
    "gpipe": ScheduleEntry(gpipe, loop_route, splits_backward=False),
    "1f1b": ScheduleEntry(
        one_f_one_b,
        loop_route,
        splits_backward=False,
        first_forwards=one_f_one_b_first_forwards,
        tried_by_search=True,
        validated=True,
    ),
    "interleaved": ScheduleEntry(
        interleaved,
        loop_route,
        splits_backward=False,
        takes_chunks=True,
        needs_whole_groups=True,
        first_forwards=interleaved_first_forwards,
        tried_by_search=True,
        validated=True,
    ),
    "breadth-first": ScheduleEntry(breadth_first, loop_route, splits_backward=False, takes_chunks=True),
    "zb-h1": ScheduleEntry(zb_h1, loop_route, first_forwards=one_f_one_b_first_forwards, tried_by_search=True),
    "zb-h2": ScheduleEntry(zb_h2, loop_route),
    "zb-auto": ScheduleEntry(zb_auto, loop_route, depends_on_times=True),
    "zb-v": ScheduleEntry(zb_v, zigzag_route, first_forwards=zb_v_first_forwards, tried_by_search=True),
    "v-half": ScheduleEntry(
        v_half, zigzag_route, first_forwards=v_half_first_forwards, bubble_cost_of_low_memory=0.5, tried_by_search=True
    ),
    "v-min": ScheduleEntry(v_min, zigzag_route, first_forwards=v_min_first_forwards, bubble_cost_of_low_memory=1.0),
    "dualpipe-v": ScheduleEntry(dualpipe_v, zigzag_route),
    "dualpipe": ScheduleEntry(dualpipe),
    "chimera": ScheduleEntry(chimera, splits_backward=False),
    "hanayo": ScheduleEntry(hanayo, zigzag_route, splits_backward=False, takes_chunks=True),
}
"""Every built-in schedule by name.  A chunk count of 1 means the schedule's fixed number, if it has one."""


def schedules_with(fact: Fact) -> tuple[str, ...]:
    """Return the names of the built-in schedules that have a property ``fact``, such as takes_chunks.

    >>> schedules_with("takes_chunks")
    ('interleaved', 'breadth-first', 'hanayo')
    """
    return tuple(name for name, entry in SCHEDULES.items() if getattr(entry, fact))


def schedule_entry(name: str) -> ScheduleEntry:
    """Return the registry entry of a built-in schedule; raise InputError with the known names if there is none.

    >>> schedule_entry("1f1b")(2, 1).rows[0]
    (Action(kind='F', microbatch=0, chunk=0), Action(kind='B', microbatch=0, chunk=0))
    """
    if name in SCHEDULES:
        return SCHEDULES[name]
    near = find_similar_words(name, SCHEDULES, cutoff=0.6)
    guess = f"did you mean {near[0]!r}? " if near else ""
    own = "; or name your function as FILE.py:FUNCTION, or a .csv file"
    raise InputError(f"unknown schedule {name!r}; {guess}the schedules are {', '.join(SCHEDULES)}{own}")


class ScheduleMaker(Protocol):
    """Interface of schedule specs with parameters, which return a function that makes the schedule."""

    def schedule_function(self, costs: Times | None = None, latency: Any = 0) -> ScheduleFunction: ...


def make_schedule(
    what: str | Schedule | ScheduleFunction | ScheduleMaker,
    num_stages: int,
    num_microbatches: int,
    num_chunks: int = 1,
    *,
    costs: Times | None = None,
    latency: Any = 0,
) -> Schedule:
    """Return the schedule made by a name, a spec or a user's function; check schedules that are not built in.

    ``costs`` and ``latency`` are the times of the run, for schedules that are ordered by times. Schedules that are not
    built in are checked. InputError for an unknown name, invalid or mismatched counts, a broken schedule (with the
    place marked) and a function that does not return a Schedule.

    >>> make_schedule("zb-v", 2, 4).num_chunks
    2
    """
    if isinstance(what, str):
        return schedule_entry(what)(num_stages, num_microbatches, num_chunks)
    if isinstance(what, Schedule):
        made: object = what
    elif callable(what):
        _require_count_parameters(what)
        made = what(num_stages, num_microbatches, num_chunks)
    elif not callable(getattr(what, "schedule_function", None)):
        reject_argument(
            what, "a step", "a schedule: a built-in name, a Schedule, a function of stages, microbatches and chunks"
        )
    else:
        return what.schedule_function(costs, latency)(num_stages, num_microbatches, num_chunks)
    if not isinstance(made, Schedule):
        name = getattr(what, "__name__", repr(what))
        raise InputError(f"schedule function {name!r} returned {type_name(made)}; it must return a Schedule")
    if (made.num_stages, made.num_microbatches) != (num_stages, num_microbatches):
        raise InputError(
            f"schedule {made.name!r} is for {made.num_stages} stages and {made.num_microbatches} microbatches, but "
            f"the job has {num_stages} and {num_microbatches}; change either so that they are equal"
        )
    return check_schedule(made)


def _require_count_parameters(function: ScheduleFunction) -> None:
    """Raise InputError if a user's function does not accept numbers of stages, microbatches and chunks."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # of some that are written in C
        return
    try:
        signature.bind(1, 1, 1)
    except TypeError as problem:
        raise InputError(
            f"schedule function {getattr(function, '__name__', repr(function))!r} takes {signature}: {problem}; it is "
            "called with three counts: stages, microbatches and chunks, as in def mine(stages, microbatches, chunks=1)"
        ) from None
