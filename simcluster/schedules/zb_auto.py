"""Automatic zero bubble: a schedule made for given times of F, I, W and messages, and for a limit of memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from simcluster.errors import InputError
from simcluster.schedules.actions import Kind, Schedule
from simcluster.schedules.check import require_counts, require_one_chunk
from simcluster.schedules.timing import Costs, ScheduleTiming, play
from simcluster.schedules.zb_h import zb_h1, zb_h2
from simcluster.schedules.zb_rounds import Rounds, Taste

Times = Callable[[Kind, int, int], Any]
"""Duration of (kind, stage, chunk), as ``play`` takes it: floats, ints or Fractions."""

_UNIT: Costs[Any] = Costs(F=1, B=2, I=1, W=1)
_ROUNDING = 1e-9  # of sums of parts of microbatches


def zb_auto(
    num_stages: int,
    num_microbatches: int,
    num_chunks: int = 1,
    *,
    costs: Times = _UNIT,
    latency: Any = 0,
    memory_limit: int | None = None,
    weight_memory: float = 1,
) -> Schedule:
    """The best of a handful of schedules that a heuristic makes for these times, at most ``memory_limit`` in flight.

    ``costs(kind, stage, 0)`` and ``latency`` are in one unit of the caller's choice; only their ratios matter.
    ``memory_limit`` counts microbatches alive on one stage; left out, there is none.  ``weight_memory`` is the part of
    a microbatch's activations that I leaves behind for W, from 0 to 1: the paper's M_W / M_B, 32 / (34 + 5 a s / h)
    for a layer without flash attention; the limit then counts parts of microbatches.  Best is the shortest longest span
    of a stage (what a stage waits for when steps follow each other), then the shortest makespan, then the fewest alive;
    never worse than zb-h1 and zb-h2 where they keep the limit, nor than what stages that are all alike would be given.
    Source: Qi et al., arXiv:2401.10241, section 3.1.
    InputError for counts or a limit below one, several chunks, and as ``play`` for impossible times.
    """
    require_counts("zb-auto", num_stages, num_microbatches, num_chunks)
    require_one_chunk("zb-auto", num_chunks)
    if memory_limit is not None and (isinstance(memory_limit, bool) or memory_limit < 1):
        raise InputError(
            f"schedule 'zb-auto': a memory limit of {memory_limit} microbatches; a stage must hold one at least"
        )
    if not 0 <= weight_memory <= 1:
        raise InputError(
            f"schedule 'zb-auto': a weight memory of {weight_memory}; it is the part that W still needs, from 0 to 1"
        )
    limit = min(memory_limit or num_microbatches, num_microbatches)
    kinds: tuple[Kind, ...] = ("F", "I", "W")
    each = [{kind: costs(kind, stage, 0) for kind in kinds} for stage in range(num_stages)]
    alike = {kind: sum(times[kind] for times in each) for kind in kinds}  # as if all were, in a unit P times as small
    profiles = [(each, latency)] + [([alike] * num_stages, latency * num_stages)] * (each != each[:1] * num_stages)
    made = [
        Rounds(num_microbatches, limit, weight_memory, times, wire, Taste(*taste)).schedule()
        for times, wire in profiles
        for taste in itertools.product((False, True), (False, True), (True, False))
    ]
    by_hand = [make(num_stages, num_microbatches) for make in (zb_h1, zb_h2)]
    made += [schedule for schedule in by_hand if _most_alive(schedule, weight_memory) <= limit + _ROUNDING]
    timings = [play(schedule, costs, latency) for schedule in made]
    best = min(range(len(made)), key=lambda index: _cost(timings[index]))
    return Schedule(
        name="zb-auto",
        rows=made[best].rows,
        num_microbatches=num_microbatches,
        num_chunks=1,
        routes=made[best].routes,
        route_of=made[best].route_of,
    )


def _most_alive(schedule: Schedule, weight_memory: float) -> float:
    """Microbatches alive at once on the worst stage, in parts of one."""
    step = {"F": 1, "I": weight_memory - 1, "W": -weight_memory}
    return max(max(itertools.accumulate(step[action.kind] for action in row)) for row in schedule.rows)


def _cost(timing: ScheduleTiming[Any]) -> tuple[Any, Any, int]:
    return max(timing.spans), timing.makespan, max(timing.peak_in_flight)
