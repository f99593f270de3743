"""Two ways to play a program, which give the same times to the bit: as events, or as one longest path where it is one.

The path is an accelerator for programs without ops that ranks do in step (a pipeline of 64 stages, 512 microbatches and
4 chunks from given times takes 2.0 s in place of 4.3); where there are any it would have to expand them, and the engine
plays them together (175B on 64 GPUs, one of them slow: 0.24 s, as a path 0.90).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from simcluster.base.clock import require_exact
from simcluster.base.errors import InputError
from simcluster.base.gc_paused import collector_off
from simcluster.engine.engine import StepsFactory, play
from simcluster.engine.longest_path import NeedsEventsError, Once, meeting_seconds
from simcluster.engine.overlaps import Encounters
from simcluster.engine.record import Record, when_over
from simcluster.programs.expand import whole
from simcluster.programs.program import OpTimes, Program

PlayedAs = Literal["auto", "events", "path"]
"""How a program is played: as ``events``, as one longest ``path``, or as that where it is exact (``auto``)."""

_IN_STEP = "ranks that do the same at the same time are played together"
_EXACT = "the order of all ops is fixed, and no transfer holds another back"


@collector_off()
def play_by(
    engine: PlayedAs, program: Program, capacity: Sequence[float], steps: Sequence[StepsFactory] = ()
) -> Record:  # fmt: skip
    """Run the program to its end; the record says how and why.

    Raises DeadlockError as ``engine.play``, and InputError for a ``path`` that would not be exact or another engine.
    """
    if engine not in get_args(PlayedAs):
        raise InputError(f"engine: {engine} cannot play a program; use {', '.join(get_args(PlayedAs))}")
    why = "engine: events"
    if engine != "events":
        try:
            return play_path(program, capacity, expands=engine == "path")
        except NeedsEventsError as error:
            why = str(error)
        except InputError:  # ops that wait for each other: events can tell who waits for what
            return play(program, capacity, steps)
    if engine == "path":
        raise InputError(f"engine: path would not be exact here: {why}; use engine: auto, or events")
    return replace(play(program, capacity, steps), why=why)


def play_path(program: Program, capacity: Sequence[float], *, expands: bool = True) -> Record:
    """The record of the program as a longest path; NeedsEventsError, with the reason, if that is not exact.

    With ops that ranks do in step it ``expands`` them, or raises NeedsEventsError, too.
    """
    if program.in_step:
        meeting_seconds(replace(program, meetings=[*program.all_meetings()]), capacity)  # soon told where it is none
        if not expands:
            raise NeedsEventsError(_IN_STEP)
        program = whole(program)
    once = Once(program, meeting_seconds(program, capacity))
    require_exact(max(once.end, default=0.0))
    ready, start, end = np.array(once.ready), np.array(once.start), np.array(once.end)
    begins = np.zeros(len(program.meetings))
    meeting = np.array(program.meeting, dtype=np.int64)
    meets = meeting >= 0
    begins[meeting[meets]] = start[meets]
    first = Encounters(program, capacity).first(begins)
    if first < math.inf:
        raise NeedsEventsError(f"transfers hold each other back on a link, the first at {first:.6g} s")
    columns = OpTimes(ready, start, end, np.array(once.last, dtype=np.int64))
    return Record(when_over(program, once.end), lambda: columns, events=0, kind="path", why=_EXACT)
