"""Exact start and end times of a schedule's actions, as longest paths; no cluster is simulated.

This is the oracle of the engine and what ``simcluster schedule`` shows. Pure; exact on Fractions and ints.

The model: F of virtual stage v needs F of v - 1; B (or I) needs B (or I) of v + 1, on the last virtual stage F; W needs
I. A full backward passes on its input gradient at its end, a fused pair [F|B] both results at its end. An edge between
different stages adds the latency; sends and receives occupy no stage (asynchronous point-to-point).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, TypeVar

from simcluster.base.errors import InputError
from simcluster.schedules.actions import Hop, Kind, Schedule
from simcluster.schedules.text import format_marked_rows

Time = TypeVar("Time", float, Fraction)
"""Seconds or any other unit; all results have the unit of the inputs."""

Step = tuple[Time, int, "Time | int", int, int]
"""An action's duration, the cell it waits for, the delay after that, and the two cells it fills (``_EndTimeIndex``)."""


@dataclass(frozen=True, slots=True)
class EqualCosts(Generic[Time]):
    """Pass times that are equal on all stages and chunks: one duration for each kind of pass (F, B, I, W)."""

    F: Time
    B: Time
    I: Time | None = None  # noqa: E741  (the papers' letter)
    W: Time | None = None

    def __call__(self, kind: Kind, stage: int, chunk: int) -> Time:
        """Return the duration of a pass; raise InputError for a split backward (I, W) without durations for I and W."""
        cost = {"F": self.F, "B": self.B, "I": self.I, "W": self.W}[kind]
        if cost is None:
            raise InputError(f"the schedule splits the backward pass but {kind} has no cost; give costs of I and W")
        return cost


UNIT_COSTS: EqualCosts[Any] = EqualCosts(F=1, B=2, I=1, W=1)
"""Equal passes on every stage and chunk, F = I = W and a whole backward of 2: as schedules are usually drawn."""


@dataclass(frozen=True, slots=True)
class SliceCosts(Generic[Time]):
    """Pass times that differ between model slices, as with uneven layers, an embedding or an LM head.

    ``times[kind][v]`` is the duration of that kind of action on virtual stage v, on any stage. InputError where a kind
    that the schedule uses has no times, or not one for each virtual stage.
    """

    schedule: Schedule
    times: Mapping[Kind, Sequence[Time]]

    def __post_init__(self) -> None:
        slices = len(self.schedule.routes[0])
        for kind in sorted({action.kind for row in self.schedule.rows for action in row}):
            if kind not in self.times:
                raise InputError(f"schedule {self.schedule.name!r} has {kind} passes, but no {kind} times; add them")
            if len(self.times[kind]) != slices:
                raise InputError(
                    f"schedule {self.schedule.name!r} has {slices} virtual stages, but {kind} has "
                    f"{len(self.times[kind])} times; give one time for each virtual stage"
                )

    def __call__(self, kind: Kind, stage: int, chunk: int) -> Time:
        """Return the duration of a pass through the model slice in this chunk of this stage."""
        return self.times[kind][self.schedule.model_slice(stage, chunk)]


@dataclass(frozen=True, slots=True)
class ScheduleTiming(Generic[Time]):
    """Timing of a schedule: start and end times of each stage's actions in row order, with makespan and idle times.

    ``makespan`` runs from the first start to the last end on any stage, ``spans`` from the first to the last of each
    stage (what zero-bubble papers count). ``idle`` is makespan - busy. ``bubble_over_total`` is idle / makespan and
    ``bubble_over_ideal`` idle / busy, both from means over the stages; for balanced stages they are (T - M t) / T and
    (T - M t) / (M t), with t the busy time of a microbatch on a stage.
    """

    starts: tuple[tuple[Time, ...], ...]
    ends: tuple[tuple[Time, ...], ...]
    makespan: Time
    busy: tuple[Time, ...]
    idle: tuple[Time, ...]
    spans: tuple[Time, ...]
    bubble_over_total: Time
    bubble_over_ideal: Time
    peak_in_flight: tuple[int, ...]


def time_actions(
    schedule: Schedule,
    costs: Callable[[Kind, int, int], Time],
    latency: Time | int = 0,
    pair: Callable[[Time, Time], Time] | None = None,
) -> ScheduleTiming[Time]:
    """Compute the start and end of each action of a schedule; actions start as soon as stage and input are ready.

    ``costs(kind, stage, chunk)`` is the duration of an action: EqualCosts for equal stages, SliceCosts for uneven
    virtual stages, or any function. ``pair(first, second)`` is the duration of a fused pair of these two durations,
    default their sum. Linear in the number of actions. The schedule must pass ``check_schedule``; InputError on a
    deadlock, and on durations or a latency that are negative or not finite.

    >>> from simcluster.schedules import gpipe
    >>> time_actions(gpipe(2, 4), EqualCosts(F=1, B=2)).makespan
    15
    """
    _require_duration(latency, "the latency between stages")
    steps = _resolve_steps(schedule, costs, latency, pair or operator.add)
    zero = costs("F", *schedule.routes[0][0]) * 0
    starts, ends = _run_rows(schedule, steps, zero)
    busy = tuple(sum((step[0] for step in row), start=zero) for row in steps)
    first = min(min(row) for row in starts if row)
    makespan = max(max(row) for row in ends if row) - first
    idle = tuple(makespan - b for b in busy)
    total_idle, total_busy = sum(idle, start=zero), sum(busy, start=zero)
    return ScheduleTiming(
        starts=starts,
        ends=ends,
        makespan=makespan,
        busy=busy,
        idle=idle,
        spans=tuple(e[-1] - s[0] if s else zero for s, e in zip(starts, ends, strict=True)),
        bubble_over_total=total_idle / (makespan * schedule.num_stages) if makespan else zero,
        bubble_over_ideal=total_idle / total_busy if total_busy else zero,
        peak_in_flight=peak_in_flight(schedule),
    )


def peak_in_flight(schedule: Schedule) -> tuple[int, ...]:
    """Return each stage's peak number of activations held at once (one per microbatch and chunk).

    No costs are needed: a stage runs its row in order, so order alone decides (an end frees before the next start).

    >>> from simcluster.schedules import one_f_one_b
    >>> peak_in_flight(one_f_one_b(4, 8))
    (4, 3, 2, 1)
    """
    peaks = []
    for row in schedule.rows:
        alive = peak = 0
        for action in row:
            if action.kind == "F":
                alive += 1
                peak = max(peak, alive)
            elif action.kind != "I":
                alive -= 1
        peaks.append(peak)
    return tuple(peaks)


class _EndTimeIndex:
    """Indices into a flat array with the end time of each forward and of each backward or input gradient.

    Two extra cells: ``ready`` holds inputs available from the start, ``unused`` results that no action waits for.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.depth = max(len(route) for route in schedule.routes)
        self.ready = 2 * self.depth * schedule.num_microbatches
        self.unused = self.ready + 1
        self.count = self.ready + 2

    def forward_cell(self, microbatch: int, virtual_stage: int) -> int:
        return 2 * (microbatch * self.depth + virtual_stage)

    def describe_wait(self, schedule: Schedule, cell: int) -> str:
        microbatch, virtual_stage = divmod(cell // 2, self.depth)
        stage, chunk = schedule.microbatch_route(microbatch)[virtual_stage]
        of_chunk = f" of chunk {chunk}" if schedule.num_chunks > 1 else ""
        what = "the backward" if cell % 2 else "the forward"
        return f"waits for {what}{of_chunk} of microbatch {microbatch} on stage {stage}"


def _resolve_steps(
    schedule: Schedule, costs: Callable[[Kind, int, int], Time], latency: Time | int, pair: Callable[[Time, Time], Time]
) -> list[list[Step[Time]]]:
    """Return each action's duration and array indices: of its input's end time, and of the end times that it sets.

    One need per action is enough: the gradient from the next virtual stage cannot exist before this stage's F.
    """
    cells = _EndTimeIndex(schedule)
    durations: dict[tuple[Kind, int, int], Time] = {}
    rows = []
    for stage, row in enumerate(schedule.rows):
        ways: dict[tuple[int, int], tuple[int, Time | int, Time | int, bool]] = {}
        steps: list[Step[Time]] = []
        for kind, microbatch, chunk in row:
            key = (kind, stage, chunk)
            if key not in durations:
                durations[key] = costs(kind, stage, chunk)
                _require_duration(durations[key], f"{kind} of chunk {chunk} on stage {stage}")
            duration = durations[key]
            way = (schedule.route_of[microbatch], chunk)
            if way not in ways:
                ways[way] = _hop_delays(schedule, microbatch, (stage, chunk), latency)
            place, delay_before, delay_after, last = ways[way]
            forward = cells.forward_cell(microbatch, place)
            if kind == "F":
                steps.append((duration, forward - 2 if place else cells.ready, delay_before, forward, cells.unused))
            elif kind == "W":
                steps.append((duration, forward + 1, 0, cells.unused, cells.unused))
            else:
                steps.append((duration, forward if last else forward + 3, delay_after, forward + 1, cells.unused))
        for position in schedule.fused_positions(stage):
            _fuse_steps(steps, position, pair)
            _require_duration(steps[position + 1][0], f"a fused pair on stage {stage}")
        rows.append(steps)
    return rows


def _hop_delays(
    schedule: Schedule, microbatch: int, hop: Hop, latency: Time | int
) -> tuple[int, Time | int, Time | int, bool]:
    """Return a hop's position on a microbatch's route, the send delays before and after, and whether it is last."""
    before, after = schedule.previous_hop(microbatch, *hop), schedule.next_hop(microbatch, *hop)
    delay_before = latency if before is not None and before[0] != hop[0] else 0
    delay_after = latency if after is not None and after[0] != hop[0] else 0
    return schedule.virtual_stage(microbatch, *hop), delay_before, delay_after, after is None


def _fuse_steps(row: list[Step[Time]], position: int, pair: Callable[[Time, Time], Time]) -> None:
    """Merge two actions of a row into a fused pair; the first action only waits, the second takes the pair's time."""
    first, second = row[position], row[position + 1]
    row[position] = (first[0] * 0, first[1], first[2], second[4], second[4])
    row[position + 1] = (pair(first[0], second[0]), second[1], second[2], second[3], first[3])


def _run_rows(
    schedule: Schedule, steps: list[list[Step[Time]]], zero: Time
) -> tuple[tuple[tuple[Time, ...], ...], tuple[tuple[Time, ...], ...]]:
    """Run each stage's row of actions and return the actions' start and end times; a stage waits for missing inputs."""
    cells = _EndTimeIndex(schedule)
    finished: list[Time | None] = [None] * cells.count
    finished[cells.ready] = zero
    starts: list[list[Time]] = [[] for _ in steps]
    ends: list[list[Time]] = [[] for _ in steps]
    clocks = [zero] * len(steps)
    waiting: dict[int, list[int]] = {}
    awake = list(range(len(steps)))
    while awake:
        stage = awake.pop()
        row, clock, row_starts, row_ends = steps[stage], clocks[stage], starts[stage], ends[stage]
        for position in range(len(row_ends), len(row)):
            duration, need, delay, cell, other_cell = row[position]
            arrival = finished[need]
            if arrival is None:
                waiting.setdefault(need, []).append(stage)
                break
            start = max(clock, arrival + delay)
            clock = start + duration
            row_starts.append(start)
            row_ends.append(clock)
            finished[cell] = finished[other_cell] = clock
            if waiting:
                awake += waiting.pop(cell, ())
                awake += waiting.pop(other_cell, ())
        clocks[stage] = clock
    if any(len(row_ends) < len(row) for row_ends, row in zip(ends, steps, strict=True)):
        raise _deadlock_error(schedule, steps, [len(row_ends) for row_ends in ends])
    for stage in range(len(steps)):
        for position in schedule.fused_positions(stage):
            starts[stage][position], ends[stage][position] = starts[stage][position + 1], ends[stage][position + 1]
    return tuple(map(tuple, starts)), tuple(map(tuple, ends))


def _deadlock_error(schedule: Schedule, steps: list[list[Step[Time]]], positions: list[int]) -> InputError:
    cells = _EndTimeIndex(schedule)
    marks = {
        stage: (position, cells.describe_wait(schedule, steps[stage][position][1]))
        for stage, position in enumerate(positions)
        if position < len(steps[stage])
    }
    return InputError(
        f"schedule {schedule.name!r} deadlocks: the marked actions wait for each other, since a stage runs its row in "
        f"order; move an action to before the action that waits for it\n{format_marked_rows(schedule, marks)}"
    )


def _require_duration(value: float | Fraction, what: str) -> None:
    if not 0 <= value < float("inf"):
        raise InputError(f"schedule timing: {what} takes {value}; a time must be finite and not negative")
