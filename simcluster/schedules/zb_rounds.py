"""Heuristic of automatic zero bubble: after a warm-up, rounds of one F and one I per stage, with W in gaps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simcluster.schedules.actions import Action, Kind, Schedule, loop_route

_ROUNDING = 1e-9  # of sums of parts of microbatches


@dataclass(frozen=True, slots=True)
class HeuristicOptions:
    """Open choices of the zero-bubble heuristic; all eight combinations are tried."""

    delay_first_input: bool
    """In the warm-up, one F more although it delays the first I."""
    skip_forward: bool
    """Leave out an F that would delay the next I, where the next stage has enough."""
    eager_weight: bool
    """A W into a gap shorter than it, where waiting would make the stage the one with the largest bubble."""


class _StageRow:
    """Builder of one stage's row, with the ends of its passes and its bubble so far."""

    def __init__(self, times: dict[Kind, Any], limit: int, weight_memory: float) -> None:
        self.times, self.limit, self._weight_memory = times, limit, weight_memory
        self.row: list[Action] = []
        self.ends: dict[Kind, list[Any]] = {"F": [], "I": [], "W": []}
        self.now: Any = 0
        self.bubble: Any = 0

    def count(self, kind: Kind) -> int:
        return len(self.ends[kind])

    @property
    def full(self) -> bool:
        alive = self.count("F") - self.count("I") + self._weight_memory * (self.count("I") - self.count("W"))
        return alive + 1 > self.limit + _ROUNDING

    @property
    def has_weight(self) -> bool:
        return self.count("W") < self.count("I")

    def put(self, kind: Kind, ready: Any = 0) -> None:
        """Append the next microbatch's pass of this kind, starting once its input is ready."""
        start = max(self.now, ready)
        if self.row:
            self.bubble += start - self.now
        self.now = start + self.times[kind]
        self.row.append(Action(kind, self.count(kind)))
        self.ends[kind].append(self.now)


class RoundsBuilder:
    """Builder of a schedule by rounds of one F and one I per stage, after a warm-up limited by memory and time."""

    def __init__(
        self,
        num_microbatches: int,
        limit: int,
        weight_memory: float,
        times: list[dict[Kind, Any]],
        latency: Any,
        taste: HeuristicOptions,
    ) -> None:
        self._stages = [_StageRow(each, limit, weight_memory) for each in times]
        self._num_microbatches, self._latency, self._taste = num_microbatches, latency, taste

    def schedule(self) -> Schedule:
        """Return the schedule of all rounds, followed by the remaining W."""
        numbers = range(len(self._stages))
        self._schedule_warm_up()
        for microbatch in range(self._num_microbatches):
            for number in numbers:
                if self._wants_forward(number, microbatch):
                    self._schedule_forward(number)
            for number in reversed(numbers):
                self._schedule_input_grad(number)
        for stage in self._stages:
            while stage.has_weight:
                stage.put("W")
        rows = [stage.row for stage in self._stages]
        return Schedule.along(loop_route(len(rows), 1), "zb-auto", rows, self._num_microbatches)

    def _schedule_warm_up(self) -> None:
        """Run the F that end before the first I can arrive, fewer on every stage than on the one before."""
        arrivals = [sum(stage.times["F"] for stage in self._stages) + (len(self._stages) - 1) * self._latency]
        for stage in reversed(self._stages[1:]):
            arrivals.append(arrivals[-1] + stage.times["I"] + self._latency)
        most = self._num_microbatches
        for number, (stage, arrival) in enumerate(zip(self._stages, reversed(arrivals), strict=True)):
            most = min(most, stage.limit)
            self._schedule_forward(number)
            while stage.count("F") < most:
                end = stage.now + stage.times["F"]
                if end > arrival and not (self._taste.delay_first_input and stage.now < arrival):
                    break
                self._schedule_forward(number)
            most = max(1, stage.count("F") - 1)

    def _wants_forward(self, number: int, microbatch: int) -> bool:
        """Return whether this stage runs an F before the I of this microbatch."""
        stage = self._stages[number]
        done = stage.count("F")
        if done <= microbatch:
            return True  # its I needs it
        ready = self._forward_ready(number)
        if microbatch == 0 or done == self._num_microbatches or ready is None:
            return False
        if stage.full and not stage.has_weight:
            return False
        if self._taste.skip_forward and number + 1 < len(self._stages):
            enough = done - self._stages[number + 1].count("F") > 1
            start = max(stage.now, ready) + (stage.times["W"] if stage.full else 0)
            return not (enough and start + stage.times["F"] > self._input_at_best(number, microbatch))
        return True

    def _input_at_best(self, number: int, microbatch: int) -> Any:
        """Return the earliest time at which this microbatch's I can be on this stage."""
        last = self._stages[-1]
        known = last.ends["F"][microbatch] if microbatch < last.count("F") else last.now
        arrival = max(last.now, known)
        for stage in reversed(self._stages[number + 1 :]):
            arrival = max(arrival, stage.now) + stage.times["I"] + self._latency
        return arrival

    def _forward_ready(self, number: int) -> Any | None:
        """Return when the input of the stage's next F is ready; None if its sender has not planned it."""
        if number == 0:
            return 0
        before = self._stages[number - 1].ends["F"]
        done = self._stages[number].count("F")
        return before[done] + self._latency if done < len(before) else None

    def _schedule_forward(self, number: int) -> None:
        stage, ready = self._stages[number], self._forward_ready(number)
        assert ready is not None  # a stage is never as far as the one before it
        self._fill_with_weight_grads(number, ready, frees=True)
        stage.put("F", ready)

    def _schedule_input_grad(self, number: int) -> None:
        stage = self._stages[number]
        if number + 1 < len(self._stages):
            ready = self._stages[number + 1].ends["I"][stage.count("I")] + self._latency
        else:
            ready = stage.ends["F"][stage.count("I")]
        self._fill_with_weight_grads(number, ready, frees=False)
        stage.put("I", ready)

    def _fill_with_weight_grads(self, number: int, ready: Any, *, frees: bool) -> None:
        """Run pending weight gradients until an input is ready: where memory is full, where they fit, or eagerly."""
        stage = self._stages[number]
        while stage.has_weight:
            gap = ready - stage.now
            if not (frees and stage.full) and gap < stage.times["W"]:
                others = [each.bubble for each in self._stages if each is not stage]
                if not self._taste.eager_weight or gap <= 0 or stage.bubble + gap <= max(others, default=0):
                    break
            stage.put("W")
