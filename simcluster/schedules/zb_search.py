"""Search for the optimal order of passes in a zero-bubble pipeline: branch and bound over the next action.

Microbatches are identical, so every stage runs each kind in their order, and a schedule is a word of F, I and W per
stage. Words are built one action at a time by the rule of Giffler and Thompson (Operations Research 8, 1960): of all
actions that could come next take the one that would end first, and branch over those that its stage could start before
that end. A schedule that is not tried has a gap into which that action fits, and is not better for it; an F fits
wherever memory lets it start, since only I and W, which free memory, lie between there and its old place. All partial
schedules of equal length are held at once; one is dropped where another has done the same on every stage and is nowhere
later, and where a lower bound shows that it cannot beat the best known. Held to a width, the search is a beam and
proves nothing.

Pure; all times are integers, so that comparisons are exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from simcluster.schedules.actions import Action, Kind

Value = tuple[int, int]
"""Values of two goals; the second one decides only between equal values of the first."""

ActionChain = tuple[int, Kind, "ActionChain | None"]
"""Linked list of actions: stage and kind of the last action, and the list of the actions before it."""

_ROUNDING = 1e-9  # of sums of parts of microbatches

_Each = TypeVar("_Each")


@dataclass(frozen=True, slots=True)
class OrderingTask:
    """Problem of ordering a pipeline's passes: each stage's F, I and W times, and the limit of microbatches in flight.

    A goal is the largest end of a stage less that stage's part of ``offsets``; there are two, in order of weight.
    """

    forward: tuple[int, ...]
    input: tuple[int, ...]
    weight: tuple[int, ...]
    latency: int
    num_microbatches: int
    limit: int
    weight_memory: float
    offsets: tuple[tuple[int, ...], tuple[int, ...]]

    @property
    def max_pending_weight_grads(self) -> int:
        """Largest number of weight-gradient passes that may still be pending when a forward starts."""
        if not self.weight_memory:
            return self.num_microbatches
        return int((self.limit - 1) / self.weight_memory + _ROUNDING)


class _PipelineState(NamedTuple):
    """State of each stage: numbers of F, I and W done, the time when it is free, and arrival times of its inputs."""

    done: tuple[tuple[int, int, int], ...]
    free_times: tuple[int, ...]
    forward_arrivals: tuple[tuple[int, ...], ...]
    input_arrivals: tuple[tuple[int, ...], ...]


class _PartialSchedule(NamedTuple):
    """Partial schedule: its actions so far, the resulting state, and a lower bound of the goals."""

    bound: Value
    state: _PipelineState
    actions: ActionChain | None
    times: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Result of a search: rows of a better schedule (None if none was found), and the best known value.

    ``complete``: nothing was dropped unproven, so that this value is the optimum.
    """

    rows: tuple[tuple[Action, ...], ...] | None
    value: Value
    complete: bool


class ScheduleSearch:
    """Search for a schedule of a task that is better than the ``known`` values, and lower bounds of its goals."""

    def __init__(self, task: OrderingTask, known: Value) -> None:
        self._task, self._best = task, known
        self._last = len(task.forward) - 1
        self._tails: dict[int, _TailTimes] = {}

    def start_state(self) -> _PipelineState:
        """Return the state before any action."""
        stages, none, first = self._last + 1, ((),) * self._last, (0,) * self._task.num_microbatches
        return _PipelineState(((0, 0, 0),) * stages, (0,) * stages, (first, *none), (*none, ()))

    def run(self, width: int | None, most: int | None) -> FoundRows:
        """Search with at most ``width`` partial schedules kept and ``most`` tried, all extended action by action."""
        layer = [_PartialSchedule((0, 0), self.start_state(), None, ())]
        complete, looked_at = True, 0
        for _ in range(3 * self._task.num_microbatches * (self._last + 1)):
            looked_at += len(layer)
            if most is not None and looked_at > most:
                return FoundRows(None, self._best, complete=False)
            layer = self._extend_by_one_action(layer)
            if width is not None and len(layer) > width:
                layer = sorted(layer, key=lambda node: (node.bound, sum(node.state.free_times)))[:width]
                complete = False
        if not layer:
            return FoundRows(None, self._best, complete)
        best = min(layer, key=lambda node: node.bound)
        return FoundRows(self._rows_of_schedule(best), best.bound, complete)

    def _extend_by_one_action(self, layer: list[_PartialSchedule]) -> list[_PartialSchedule]:
        """Extend each partial schedule by every possible next action; drop dominated schedules."""
        found: dict[tuple[tuple[int, int, int], ...], list[_PartialSchedule]] = {}
        for node in layer:
            for stage, kind, start in self._alternative_actions(node.state):
                state = self._state_after_action(node.state, stage, kind, start)
                bound = self._bounds_if_better(state)
                if bound is None:
                    continue
                new = _PartialSchedule(bound, state, (stage, kind, node.actions), _comparison_times(state))
                others = found.setdefault(state.done, [])
                if not any(_dominates(other.times, new.times) for other in others):
                    others[:] = [other for other in others if not _dominates(new.times, other.times)]
                    others.append(new)
        return list(itertools.chain.from_iterable(found.values()))

    def _alternative_actions(self, state: _PipelineState) -> list[tuple[int, Kind, int]]:
        """Return the possible next actions, all on the same stage, as (stage, kind of pass, start time)."""
        task = self._task
        first_end: float = math.inf
        best: list[tuple[int, Kind, int, int]] = []
        for stage, (forwards, inputs, weights) in enumerate(state.done):
            free = state.free_times[stage]
            able: list[tuple[int, Kind, int, int]] = []
            if weights < inputs:
                able.append((stage, "W", free, free + task.weight[stage]))
            if state.input_arrivals[stage]:
                start = max(free, state.input_arrivals[stage][0])
                able.append((stage, "I", start, start + task.input[stage]))
            if state.forward_arrivals[stage]:
                alive = forwards - inputs + task.weight_memory * (inputs - weights)
                if alive + 1 <= task.limit + _ROUNDING:
                    start = max(free, state.forward_arrivals[stage][0])
                    able.append((stage, "F", start, start + task.forward[stage]))
            soonest = min((end for *_, end in able), default=math.inf)
            if soonest < first_end:
                first_end, best = soonest, able
        return [(stage, kind, start) for stage, kind, start, end in best if start < first_end or end == first_end]

    def _state_after_action(self, state: _PipelineState, stage: int, kind: Kind, start: int) -> _PipelineState:
        task, (done, free, forwards, inputs) = self._task, state
        did_forwards, did_inputs, did_weights = done[stage]
        if kind == "F":
            end, did_forwards = start + task.forward[stage], did_forwards + 1
            forwards = _replace_item(forwards, stage, forwards[stage][1:])
            if stage < self._last:
                forwards = _replace_item(forwards, stage + 1, (*forwards[stage + 1], end + task.latency))
            else:
                inputs = _replace_item(inputs, stage, (*inputs[stage], end))
        elif kind == "I":
            end, did_inputs = start + task.input[stage], did_inputs + 1
            inputs = _replace_item(inputs, stage, inputs[stage][1:])
            if stage:
                inputs = _replace_item(inputs, stage - 1, (*inputs[stage - 1], end + task.latency))
        else:
            end, did_weights = start + task.weight[stage], did_weights + 1
        did = (did_forwards, did_inputs, did_weights)
        return _PipelineState(_replace_item(done, stage, did), _replace_item(free, stage, end), forwards, inputs)

    def _bounds_if_better(self, state: _PipelineState) -> Value | None:
        first = self.lower_bound(state, 0)
        if first > self._best[0]:
            return None
        second = self.lower_bound(state, 1)
        return None if (first, second) >= self._best else (first, second)

    def lower_bound(self, state: _PipelineState, goal: int) -> int:
        """Return a lower bound of a goal over all completions of a partial schedule."""
        task, offsets = self._task, self._task.offsets[goal]
        if goal not in self._tails:
            self._tails[goal] = _compute_tail_times(task, offsets)
        tails, total, most = self._tails[goal], task.num_microbatches, 0
        next_forward, next_input = self._earliest_starts(state)
        for stage, (forwards, inputs, weights) in enumerate(state.done):
            forward, input_, weight = task.forward[stage], task.input[stage], task.weight[stage]
            begin = state.free_times[stage]
            if weights == inputs < total:  # no W to begin with
                begin = next_input[stage] if forwards == total else min(next_forward[stage], next_input[stage])
            work = (total - forwards) * forward + (total - inputs) * input_ + (total - weights) * weight
            ends = [begin + work - offsets[stage]]
            if forwards < total:
                ends.append(next_forward[stage] + tails.forward[stage][forwards])
            if inputs < total:
                ends.append(next_input[stage] + tails.input[stage][inputs])
                before = (total - forwards) * forward + (total - inputs - 1) * input_  # before the last I
                if forwards < total:
                    before += max(0, total - 1 - task.max_pending_weight_grads - weights) * weight
                ends.append(begin + before + tails.input[stage][-1])
            if weights < total:
                ends.append(begin + tails.weight[stage][weights])
            most = max(most, *ends)
        return most

    def _earliest_starts(self, state: _PipelineState) -> tuple[list[int], list[int]]:
        task, (done, free, forwards, inputs) = self._task, state
        next_forward, next_input = list(free), list(free)
        for stage in range(self._last + 1):
            if forwards[stage]:
                next_forward[stage] = max(free[stage], forwards[stage][0])
            elif done[stage][0] < task.num_microbatches:  # then it is the next of the stage before, too
                arrival = next_forward[stage - 1] + task.forward[stage - 1] + task.latency
                next_forward[stage] = max(free[stage], arrival)
        for stage in range(self._last, -1, -1):
            if inputs[stage]:
                next_input[stage] = max(free[stage], inputs[stage][0])
            elif done[stage][1] < task.num_microbatches:
                if stage < self._last:
                    arrival = next_input[stage + 1] + task.input[stage + 1] + task.latency
                else:
                    arrival = next_forward[stage] + task.forward[stage]
                next_input[stage] = max(free[stage], arrival)
        return next_forward, next_input

    def _rows_of_schedule(self, node: _PartialSchedule) -> tuple[tuple[Action, ...], ...]:
        passes: list[tuple[int, Kind]] = []
        way = node.actions
        while way is not None:
            stage, kind, way = way
            passes.append((stage, kind))
        rows: list[list[Action]] = [[] for _ in range(self._last + 1)]
        for stage, kind in reversed(passes):
            rows[stage].append(Action(kind, sum(action.kind == kind for action in rows[stage])))
        return tuple(map(tuple, rows))


@dataclass(frozen=True, slots=True)
class _TailTimes:
    """Least time from an action's start to the end of all actions that must follow, by stage and microbatch."""

    forward: list[list[int]]
    input: list[list[int]]
    weight: list[list[int]]


def _compute_tail_times(task: OrderingTask, offsets: Sequence[int]) -> _TailTimes:
    """Compute the least time from each action's start to the end of all actions that must follow."""
    total, stages = task.num_microbatches, range(len(task.forward))
    rows = [[[0] * total for _ in stages] for _ in range(3)]
    forward, input_, weight = rows
    for k in range(total - 1, -1, -1):
        left, after_input, after_weight = total - k, k + task.limit, k + task.max_pending_weight_grads + 1
        for stage in stages:
            f, i, w = task.forward[stage], task.input[stage], task.weight[stage]
            ends = [left * w + max(0, total - after_weight) * (f + i) - offsets[stage]]
            if after_weight < total:
                ends.append(w + forward[stage][after_weight])
            weight[stage][k] = max(ends)
            ends = [i + weight[stage][k], left * (i + w) + max(0, total - after_input) * f - offsets[stage]]
            if k + 1 < total:
                ends.append(i + input_[stage][k + 1])
            if after_input < total:
                ends.append(i + forward[stage][after_input])
            if stage:
                ends.append(i + task.latency + input_[stage - 1][k])
            input_[stage][k] = max(ends)
        for stage in reversed(stages):
            f, i, w = task.forward[stage], task.input[stage], task.weight[stage]
            ends = [f + input_[stage][k], left * (f + i + w) - offsets[stage]]
            if k + 1 < total:
                ends.append(f + forward[stage][k + 1])
            if stage + 1 < len(stages):
                ends.append(f + task.latency + forward[stage + 1][k])
            forward[stage][k] = max(ends)
    return _TailTimes(forward, input_, weight)


def _replace_item(row: tuple[_Each, ...], index: int, value: _Each) -> tuple[_Each, ...]:
    return (*row[:index], value, *row[index + 1 :])


def _comparison_times(state: _PipelineState) -> tuple[int, ...]:
    """Return the times by which partial schedules with the same passes done are compared (less is better)."""
    found, arrived = list(state.free_times), state.forward_arrivals[1:] + state.input_arrivals
    for free, arrivals in zip(state.free_times[1:] + state.free_times, arrived, strict=True):
        found += [max(free, arrival) for arrival in arrivals]
    return tuple(found)


def _dominates(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return all(map(int.__le__, one, other))
