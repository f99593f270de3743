"""Comparison of schedules with equal compute per stage: makespan, bubble and activations in flight.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from simcluster.base.display import Displayable
from simcluster.base.errors import InputError
from simcluster.documents.argument_types import check_arguments
from simcluster.schedules import make_schedule, schedules_with
from simcluster.schedules.actions import Schedule
from simcluster.schedules.timing import UNIT_COSTS, EqualCosts, ScheduleTiming, peak_in_flight, time_actions
from simcluster.schedules.zb_auto import OptimizedSchedule


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Times of one microbatch's passes through a pipeline stage (1/P of the model), equal on all stages.

    A stage with v chunks takes 1/v of them for each; a schedule that holds the model twice, all of them for each of its
    copies. ``backward`` is B whole, ``input`` I and ``weight`` W; ``pair`` is a fused [F|B], None for F + B.
    ``latency`` lies between stages and occupies none.
    """

    forward: Fraction
    backward: Fraction
    input: Fraction
    weight: Fraction
    latency: Fraction = Fraction(0)
    pair: Fraction | None = None

    def chunk_times(self, schedule: Schedule) -> EqualCosts[Fraction]:
        """Return the pass times of one chunk of a stage under this schedule."""
        return self.pass_times(chunk_share(schedule))

    def pass_times(self, share: Fraction | int = 1) -> EqualCosts[Fraction]:
        """Return the pass times of the fraction ``share`` of a stage, by default of the whole stage."""
        return EqualCosts(F=self.forward * share, B=self.backward * share, I=self.input * share, W=self.weight * share)


@dataclass(frozen=True, slots=True)
class TimedSchedule(Displayable):
    """A schedule with its simulated start and end times, and its metrics: bubble, memory and makespan."""

    schedule: Schedule
    timing: ScheduleTiming[Fraction]
    times: StageTimes
    optimization: OptimizedSchedule | None = None

    @property
    def ideal_time(self) -> Fraction:
        """Time that a stage would take for all M microbatches without a bubble: M (F + B), even with fused pairs."""
        return self.schedule.num_microbatches * (self.times.forward + self.times.backward)

    @property
    def longest_span(self) -> Fraction:
        """Longest time from a stage's first start to its last end, over all stages.

        This is the step time where a stage may start the next step as soon as it ends, as zero-bubble papers count.
        """
        return max(self.timing.spans)

    @property
    def span_bubble(self) -> Fraction:
        """Idle fraction of the longest stage span: 1 - mean busy time of the stages / longest span."""
        busy = sum(self.timing.busy, start=Fraction(0)) / len(self.timing.busy)
        return 1 - busy / self.longest_span if self.longest_span else Fraction(0)

    @property
    def peak_activations(self) -> tuple[Fraction, ...]:
        """Peak activations in flight on each stage, in microbatches (the activations of a whole stage count as 1)."""
        share = chunk_share(self.schedule)
        return tuple(peak * share for peak in self.timing.peak_in_flight)

    @property
    def weight_copies(self) -> int:
        """Number of copies of the model's weights: 2 for schedules with microbatches entering at both ends, else 1."""
        held = {hop for route in self.schedule.routes for hop in route}
        return -(-len(held) // len(self.schedule.routes[0]))


def describe_extra_activations(schedule: Schedule) -> str:
    """Return a text on how far peak activations in flight exceed those of 1F1B; "" if they do not."""
    most, usual = max(peak_in_flight(schedule)), min(schedule.num_stages, schedule.num_microbatches)
    if most * chunk_share(schedule) <= usual:
        return ""
    return f"holds activations of up to {most} microbatches on a stage, {most / usual:.3g} x the {usual} of 1F1B"


def chunk_share(schedule: Schedule) -> Fraction:
    """Return the fraction of a stage's layers in one chunk: 1/v for v chunks, or 1 if each chunk has a model copy."""
    return Fraction(schedule.num_stages, len(schedule.routes[0]))


def time_schedule(schedule: Schedule, times: StageTimes) -> TimedSchedule:
    """Compute start and end times of a schedule with these pass times; InputError for a deadlock or invalid times."""
    together = None if times.pair is None else times.pair * chunk_share(schedule)
    pair = None if together is None else lambda _forward, _backward: together
    timing = time_actions(schedule, times.chunk_times(schedule), times.latency, pair)
    return TimedSchedule(schedule, timing, times)


UNIT_TIMES = StageTimes(Fraction(1), Fraction(2), Fraction(1), Fraction(1))
"""F = I = W = 1, and a whole backward is 2: what schedules are usually drawn with."""


_MOST_ACTIONS = 1_000_000


def require_few_actions(stages: int, microbatches: int, chunks: int) -> None:
    """Raise InputError if stages x microbatches x chunks is too large to time every action."""
    actions = 2 * stages * microbatches * chunks
    if actions > _MOST_ACTIONS:
        raise InputError(
            f"stages {stages:,} x microbatches {microbatches:,} x chunks {chunks:,}: {actions:,} actions are too many; "
            f"the product of the three must be at most {_MOST_ACTIONS // 2:,}: use fewer microbatches"
        )


@check_arguments
def simulate_schedules(
    schedules: Sequence[str | Schedule],
    *,
    stages: int,
    microbatches: int,
    chunks: int = 2,
    times: StageTimes = UNIT_TIMES,
) -> list[TimedSchedule]:
    """Compute the start and end times of several schedules (names or objects) with the same pass times.

    ``chunks`` is per stage, for schedules that take it. InputError for unknown names and counts that do not fit.
    """
    require_few_actions(stages, microbatches, chunks)
    return [
        time_schedule(
            make_schedule(each, stages, microbatches, chunks if each in schedules_with("takes_chunks") else 1)
            if isinstance(each, str)
            else each,
            times,
        )
        for each in schedules
    ]


@dataclass(frozen=True, slots=True)
class ScheduleBubble:
    """Mean idle fraction of a schedule's makespan for equal passes and communication that takes no time.

    ``formula`` is its closed form for any F and B ("" if none): P stages, M microbatches, v chunks per stage.
    """

    fraction: float
    formula: str

    def describe(self) -> str:
        """Return the bubble as text, such as "20.0% by the schedule alone, (P-1)/(M+P-1)"."""
        return f"{self.fraction:.1%} by the schedule alone" + (f", {self.formula}" if self.formula else "")


def compute_schedule_bubble(schedule: Schedule) -> ScheduleBubble:
    """Compute a schedule's bubble with equal passes (F = I = W, B = 2 F), without communication or optimizer.

    >>> from simcluster.schedules import gpipe
    >>> compute_schedule_bubble(gpipe(4, 12)).describe()
    '20.0% by the schedule alone, (P-1)/(M+P-1)'
    """
    stages, microbatches, chunks = schedule.num_stages, schedule.num_microbatches, schedule.num_chunks
    fraction = float(time_actions(schedule, UNIT_COSTS).bubble_over_total)
    whole = all(action.kind in "FB" for row in schedule.rows for action in row)
    known = (stages - 1) / (chunks * microbatches + stages - 1)
    if stages == 1 or not whole or not math.isclose(fraction, known, rel_tol=1e-12):
        return ScheduleBubble(fraction, "")
    return ScheduleBubble(fraction, "(P-1)/(M+P-1)" if chunks == 1 else "(P-1)/(vM+P-1)")
