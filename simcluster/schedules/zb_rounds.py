"""Zero-bubble heuristic: after a warm-up, each round runs one F and one I per stage, and W fills the gaps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simcluster.schedules.actions import Action, Kind, Schedule, loop_route

_ROUNDING = 1e-9  # of sums of parts of microbatches


@dataclass(frozen=True, slots=True)
class HeuristicOptions:
    """Three on/off options of the zero-bubble heuristic; all eight combinations are tried."""

    delay_first_input: bool
    """Whether the warm-up runs one more forward although this delays the first input gradient."""
    skip_forward: bool
    """Whether to skip a forward that would delay the next input gradient, if the next stage has enough work."""
    eager_weight_grads: bool
    """Whether a weight gradient may exceed its gap, if waiting would give this stage the largest bubble."""


class _StageRow:
    """Builder of one stage's row; keeps the passes' end times and the stage's idle time so far."""

    def __init__(self, times: dict[Kind, Any], limit: int, weight_memory: float) -> None:
        self.times, self.limit, self._weight_memory = times, limit, weight_memory
        self.row: list[Action] = []
        self.ends: dict[Kind, list[Any]] = {"F": [], "I": [], "W": []}
        self.now: Any = 0
        self.bubble: Any = 0

    def count_passes(self, kind: Kind) -> int:
        return len(self.ends[kind])

    @property
    def is_memory_full(self) -> bool:
        inputs = self.count_passes("I")
        alive = self.count_passes("F") - inputs + self._weight_memory * (inputs - self.count_passes("W"))
        return alive + 1 > self.limit + _ROUNDING

    @property
    def has_pending_weight_grad(self) -> bool:
        return self.count_passes("W") < self.count_passes("I")

    def append_pass(self, kind: Kind, ready: Any = 0) -> None:
        """Append the next microbatch's pass of this kind, to start when its input is ready or later."""
        start = max(self.now, ready)
        if self.row:
            self.bubble += start - self.now
        self.now = start + self.times[kind]
        self.row.append(Action(kind, self.count_passes(kind)))
        self.ends[kind].append(self.now)


class RoundsBuilder:
    """Builder of a zero-bubble schedule: a warm-up within memory and time limits, then rounds of one F and one I."""

    def __init__(
        self,
        num_microbatches: int,
        limit: int,
        weight_memory: float,
        times: list[dict[Kind, Any]],
        latency: Any,
        options: HeuristicOptions,
    ) -> None:
        self._stages = [_StageRow(each, limit, weight_memory) for each in times]
        self._num_microbatches, self._latency, self._taste = num_microbatches, latency, options

    def build_schedule(self) -> Schedule:
        """Build the schedule: the warm-up, all rounds, and the weight gradients that remain."""
        numbers = range(len(self._stages))
        self._schedule_warm_up()
        for microbatch in range(self._num_microbatches):
            for number in numbers:
                if self._should_run_forward(number, microbatch):
                    self._schedule_forward(number)
            for number in reversed(numbers):
                self._schedule_input_grad(number)
        for stage in self._stages:
            while stage.has_pending_weight_grad:
                stage.append_pass("W")
        rows = [stage.row for stage in self._stages]
        return Schedule.with_single_route(loop_route(len(rows), 1), "zb-auto", rows, self._num_microbatches)

    def _schedule_warm_up(self) -> None:
        """Run the forwards that end before the first I can start; each stage runs fewer than the stage before."""
        arrivals = [sum(stage.times["F"] for stage in self._stages) + (len(self._stages) - 1) * self._latency]
        for stage in reversed(self._stages[1:]):
            arrivals.append(arrivals[-1] + stage.times["I"] + self._latency)
        most = self._num_microbatches
        for number, (stage, arrival) in enumerate(zip(self._stages, reversed(arrivals), strict=True)):
            most = min(most, stage.limit)
            self._schedule_forward(number)
            while stage.count_passes("F") < most:
                end = stage.now + stage.times["F"]
                if end > arrival and not (self._taste.delay_first_input and stage.now < arrival):
                    break
                self._schedule_forward(number)
            most = max(1, stage.count_passes("F") - 1)

    def _should_run_forward(self, stage_id: int, microbatch: int) -> bool:
        """Return whether a stage should run another forward before the input gradient of this microbatch."""
        stage = self._stages[stage_id]
        done = stage.count_passes("F")
        if done <= microbatch:
            return True  # its I needs it
        ready = self._forward_ready_time(stage_id)
        if microbatch == 0 or done == self._num_microbatches or ready is None:
            return False
        if stage.is_memory_full and not stage.has_pending_weight_grad:
            return False
        if self._taste.skip_forward and stage_id + 1 < len(self._stages):
            enough = done - self._stages[stage_id + 1].count_passes("F") > 1
            start = max(stage.now, ready) + (stage.times["W"] if stage.is_memory_full else 0)
            return not (enough and start + stage.times["F"] > self._earliest_input_time(stage_id, microbatch))
        return True

    def _earliest_input_time(self, stage_id: int, microbatch: int) -> Any:
        """Return the earliest time at which a stage can start the input gradient of this microbatch."""
        last = self._stages[-1]
        known = last.ends["F"][microbatch] if microbatch < last.count_passes("F") else last.now
        arrival = max(last.now, known)
        for stage in reversed(self._stages[stage_id + 1 :]):
            arrival = max(arrival, stage.now) + stage.times["I"] + self._latency
        return arrival

    def _forward_ready_time(self, stage_id: int) -> Any | None:
        """Return when the input of the stage's next forward arrives; None if the previous stage has not sent it."""
        if stage_id == 0:
            return 0
        before = self._stages[stage_id - 1].ends["F"]
        done = self._stages[stage_id].count_passes("F")
        return before[done] + self._latency if done < len(before) else None

    def _schedule_forward(self, stage_id: int) -> None:
        stage, ready = self._stages[stage_id], self._forward_ready_time(stage_id)
        assert ready is not None  # a stage is never as far as the one before it
        self._fill_with_weight_grads(stage_id, ready, frees=True)
        stage.append_pass("F", ready)

    def _schedule_input_grad(self, stage_id: int) -> None:
        stage = self._stages[stage_id]
        if stage_id + 1 < len(self._stages):
            ready = self._stages[stage_id + 1].ends["I"][stage.count_passes("I")] + self._latency
        else:
            ready = stage.ends["F"][stage.count_passes("I")]
        self._fill_with_weight_grads(stage_id, ready, frees=False)
        stage.append_pass("I", ready)

    def _fill_with_weight_grads(self, stage_id: int, ready: Any, *, frees: bool) -> None:
        """Run pending weight gradients before the next pass if memory is full, the gap is large enough, or eagerly."""
        stage = self._stages[stage_id]
        while stage.has_pending_weight_grad:
            gap = ready - stage.now
            if not (frees and stage.is_memory_full) and gap < stage.times["W"]:
                others = [each.bubble for each in self._stages if each is not stage]
                if not self._taste.eager_weight_grads or gap <= 0 or stage.bubble + gap <= max(others, default=0):
                    break
            stage.append_pass("W")
