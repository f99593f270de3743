"""Automatic zero-bubble schedule, optimized for pass times, message times, a memory limit and a goal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal, get_args

from simcluster.base.errors import InputError
from simcluster.schedules.actions import Kind, Schedule
from simcluster.schedules.check import require_counts, require_one_chunk
from simcluster.schedules.timing import UNIT_COSTS, ScheduleTiming, time_actions
from simcluster.schedules.zb_greedy import GreedyBuilder
from simcluster.schedules.zb_handcrafted import zb_h1, zb_h2
from simcluster.schedules.zb_rounds import HeuristicOptions, RoundsBuilder
from simcluster.schedules.zb_search import FoundRows, OrderingTask, ScheduleSearch, Value

Times = Callable[[Kind, int, int], Any]
"""Duration of (kind, stage, chunk), as ``time_actions`` takes it: floats, ints or Fractions."""

Goal = Literal["span", "step"]
"""What is minimized: the longest span of a stage, or one step from its first start to its last end."""

ALWAYS_PROVED = 32
"""Stages x microbatches up to which the search continues until it has the optimum."""

_ROUNDING = 1e-9  # of sums of parts of microbatches
_MOST = 2000  # partial schedules that the search looks at in larger pipelines: 0.1 to 0.4 s
_WIDTHS = (4, 16, 64)  # of the beams before the whole search, which starts from what they find


@dataclass(frozen=True, slots=True)
class OptimizedSchedule:
    """Best zero-bubble schedule found, the goal's value for this schedule, and a lower bound of the value.

    ``is_proved_optimal``: none is better, so that the goal's ``value`` is the optimum (of floats, to 1e-9 of it).
    """

    schedule: Schedule
    goal: Goal
    value: Any
    bound: Any
    is_proved_optimal: bool


def zb_auto(num_stages: int, num_microbatches: int, num_chunks: int = 1, **wanted: Any) -> Schedule:
    """Make the best zero-bubble schedule for these times of F, I and W and this limit on activations.

    It is that of ``optimize_schedule``, whose keywords may be ``wanted``: arXiv:2401.10241, section 3.

    >>> from simcluster.schedules.text import order_lines
    >>> order_lines(zb_auto(2, 3, memory_limit=2))
    ['r0 F0 F1 I0 W0 F2 I1 W1 I2 W2', 'r1 F0 I0 F1 I1 W0 F2 I2 W1 W2']
    """
    return optimize_schedule(num_stages, num_microbatches, num_chunks, **wanted).schedule


def optimize_schedule(
    num_stages: int,
    num_microbatches: int,
    num_chunks: int = 1,
    *,
    costs: Times = UNIT_COSTS,
    latency: Any = 0,
    memory_limit: int | None = None,
    weight_memory: float = 1,
    goal: Goal = "span",
) -> OptimizedSchedule:
    """Find the best zero-bubble schedule for these pass times and a limit on the microbatches in flight.

    ``goal`` span: the shortest longest span of a stage, which is the step time where stages start the next step as they
    finish (the optimizer's checks come after it, as in the paper's section 4), then the shortest makespan. ``step``:
    the shortest makespan, where all stages wait for each other before the optimizer, then the shortest span. Stages
    start everything as early as they can, so a span begins with the first F's arrival.

    Up to ALWAYS_PROVED stages x microbatches this is the optimum (``zb_search``). In larger pipelines it is the best of
    the paper's heuristic in its variants (``zb_rounds``), zb-h1 and zb-h2 where they keep the limit, ``zb_greedy``, and
    up to 166 stages x microbatches a beam; ``is_proved_optimal`` states whether that is known to be the optimum.

    ``costs(kind, stage, 0)`` and ``latency`` are in one unit of the caller's choice; only their ratios matter.
    ``memory_limit`` counts microbatches alive on one stage (default: no limit). ``weight_memory`` is the part of a
    microbatch's activations that I keeps for W, from 0 to 1: the paper's M_W / M_B, 32 / (34 + 5 a s / h) for a layer
    without flash attention; the limit then counts parts of microbatches. Source: Qi et al., arXiv:2401.10241, sections
    3.1 and 4. InputError for counts or a limit below one, several chunks, another goal, and impossible times.
    """
    _require_valid_options(num_stages, num_microbatches, num_chunks, memory_limit, weight_memory, goal)
    limit = min(memory_limit or num_microbatches, num_microbatches)
    kinds: tuple[Kind, ...] = ("F", "I", "W")
    each = [{kind: costs(kind, stage, 0) for kind in kinds} for stage in range(num_stages)]
    made = _make_heuristic_schedules(each, latency, num_microbatches, limit, weight_memory)
    reached = [_goal_values(time_actions(schedule, costs, latency), goal) for schedule in made]
    best = min(range(len(made)), key=reached.__getitem__)
    schedule, value = replace(made[best], name="zb-auto"), reached[best][0]
    task, unit = _make_ordering_task(each, latency, num_microbatches, limit, weight_memory, goal)
    known = _integer_goal_values(schedule, task)
    search = ScheduleSearch(task, known)
    bounds = tuple(search.lower_bound(search.start_state(), index) for index in (0, 1))
    if known == bounds:
        return OptimizedSchedule(schedule, goal, value, value, True)
    found = _search_better_rows(task, known)
    if found.rows is not None:
        schedule = replace(schedule, rows=found.rows)
        value = _goal_values(time_actions(schedule, costs, latency), goal)[0]
    proved = found.complete or found.value[0] == bounds[0]
    return OptimizedSchedule(schedule, goal, value, value if proved else bounds[0] * unit, proved)


def _require_valid_options(
    num_stages: int, num_microbatches: int, num_chunks: int, memory_limit: int | None, weight_memory: float, goal: str
) -> None:
    require_counts("zb-auto", num_stages, num_microbatches, num_chunks)
    require_one_chunk("zb-auto", num_chunks)
    if memory_limit is not None and (isinstance(memory_limit, bool) or memory_limit < 1):
        raise InputError(
            f"schedule 'zb-auto': memory_limit is {memory_limit} microbatches; a stage must be able to hold at least 1"
        )
    if not 0 <= weight_memory <= 1:
        raise InputError(
            f"schedule 'zb-auto': weight_memory is {weight_memory}, the share kept for W; it must be from 0 to 1"
        )
    if goal not in get_args(Goal):
        raise InputError(
            f"schedule 'zb-auto': goal is {goal!r}; it must be 'span' (longest span of a stage) or 'step' (one "
            f"step with an optimizer that waits for all stages)"
        )


def _make_heuristic_schedules(
    each: list[dict[Kind, Any]], latency: Any, num_microbatches: int, limit: int, weight_memory: float
) -> list[Schedule]:
    stages = len(each)
    alike = {kind: sum(times[kind] for times in each) for kind in each[0]}  # as if all were, in a unit P times as small
    profiles = [(each, latency)] + [([alike] * stages, latency * stages)] * (each != each[:1] * stages)
    made = [
        RoundsBuilder(num_microbatches, limit, weight_memory, times, wire, HeuristicOptions(*taste)).build_schedule()
        for times, wire in profiles
        for taste in itertools.product((False, True), (False, True), (True, False))
    ]
    by_hand = [make(stages, num_microbatches) for make in (zb_h1, zb_h2)]
    made += [schedule for schedule in by_hand if _peak_microbatches_held(schedule, weight_memory) <= limit + _ROUNDING]
    orders: tuple[tuple[Kind, ...], ...] = (("I", "F", "W"), ("I", "W", "F"))
    task = num_microbatches, limit, weight_memory, each, latency
    return made + [GreedyBuilder(*task, order).build_schedule() for order in orders]


def _peak_microbatches_held(schedule: Schedule, w_memory_share: float) -> float:
    step = {"F": 1, "I": w_memory_share - 1, "W": -w_memory_share}
    return max(max(itertools.accumulate(step[action.kind] for action in row)) for row in schedule.rows)


def _goal_values(timing: ScheduleTiming[Any], goal: Goal) -> tuple[Any, Any, int]:
    span, makespan = max(timing.spans), timing.makespan
    first, second = (span, makespan) if goal == "span" else (makespan, span)
    return first, second, max(timing.peak_in_flight)


def _make_ordering_task(
    each: list[dict[Kind, Any]], latency: Any, num_microbatches: int, limit: int, weight_memory: float, goal: Goal
) -> tuple[OrderingTask, Any]:
    """Return the search problem with all times as integers, and the unit of these integers."""
    times = [latency, *(time for times in each for time in times.values())]
    unit: Any = 1
    if all(isinstance(time, int | Fraction) for time in times):
        unit = Fraction(1, math.lcm(*(time.denominator for time in times)))
    if isinstance(unit, int) or unit.denominator > 2**64:
        unit = max(times) / 2**44 or 1
    forward, input_, weight = (tuple(round(times[kind] / unit) for times in each) for kind in each[0])
    wire = round(latency / unit)
    begins = tuple(itertools.accumulate((time + wire for time in forward[:-1]), initial=0))  # every row begins with F 0
    spans, makespan = begins, (0,) * len(each)
    offsets = (spans, makespan) if goal == "span" else (makespan, spans)
    return OrderingTask(forward, input_, weight, wire, num_microbatches, limit, weight_memory, offsets), unit


def _integer_goal_values(schedule: Schedule, task: OrderingTask) -> Value:
    times = {"F": task.forward, "I": task.input, "W": task.weight}

    def duration_of(kind: Kind, stage: int, chunk: int) -> float:
        return times[kind][stage]  # whole numbers, as are all sums of them

    ends = [int(row[-1]) for row in time_actions(schedule, duration_of, task.latency).ends]
    first, second = (max(end - offset for end, offset in zip(ends, each, strict=True)) for each in task.offsets)
    return first, second


def _search_better_rows(task: OrderingTask, known: Value) -> FoundRows:
    """Search for rows of a better value than ``known``, by beam searches of increasing width."""
    size = len(task.forward) * task.num_microbatches
    most = None if size <= ALWAYS_PROVED else _MOST
    widths: list[int | None] = [width for width in _WIDTHS if most is None or width * 3 * size <= most]
    best = FoundRows(None, known, complete=False)
    for width in [*widths, None] if widths else []:
        found = ScheduleSearch(task, best.value).run(width, most)
        best = replace(found, rows=found.rows or best.rows)
        if found.complete:
            break
    return best
