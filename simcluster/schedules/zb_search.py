"""Search for the optimal zero-bubble order of one pipeline over active schedules.

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from simcluster.schedules.actions import Action, Kind

Value = tuple[int, int]
"""Of two goals the first counts, the second where the first is the same."""

ActionChain = tuple[int, Kind, "ActionChain | None"]
"""Actions, the last first: its stage and kind, and those before it."""

_ROUNDING = 1e-9  # of sums of parts of microbatches

_Each = TypeVar("_Each")


@dataclass(frozen=True, slots=True)
class OrderingTask:
    """Ordering problem: pass times by stage, and at most ``limit`` microbatches alive on a stage.

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
        """Largest number of pending W passes when a forward starts: F number k + this + 1 comes after W k."""
        if not self.weight_memory:
            return self.num_microbatches
        return int((self.limit - 1) / self.weight_memory + _ROUNDING)


class _State(NamedTuple):
    """State of every stage: (F, I, W) done, when it is free, and known arrivals of its next F and I inputs."""

    done: tuple[tuple[int, int, int], ...]
    free: tuple[int, ...]
    forwards: tuple[tuple[int, ...], ...]
    inputs: tuple[tuple[int, ...], ...]


class _Node(NamedTuple):
    """Partial schedule: its bounds, its state, its actions, and the times by which it is compared (_times)."""

    bound: Value
    state: _State
    way: ActionChain | None
    times: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Rows of a schedule better than the known one (None if there is none), and the best value known.

    ``complete``: nothing was dropped unproven, so that this value is the optimum.
    """

    rows: tuple[tuple[Action, ...], ...] | None
    value: Value
    complete: bool


def search_orders(task: OrderingTask, known: Value, width: int | None = None, most: int | None = None) -> FoundRows:
    """Search for the best schedule below ``known``, with at most ``width`` partial ones at once and ``most`` in all."""
    return _Search(task, known).run(width, most)


def lower_bound(task: OrderingTask, goal: int) -> int:
    """Return a lower bound on one goal (0 or 1) over all schedules of the task."""
    searching = _Search(task, (0, 0))
    return searching.bound(searching.start(), goal)


class _Search:
    def __init__(self, task: OrderingTask, known: Value) -> None:
        self._task, self._best = task, known
        self._last = len(task.forward) - 1
        self._tails: dict[int, _Tails] = {}

    def start(self) -> _State:
        stages, none = self._last + 1, ((),) * self._last
        return _State(((0, 0, 0),) * stages, (0,) * stages, ((0,) * self._task.num_microbatches, *none), (*none, ()))

    def run(self, width: int | None, most: int | None) -> FoundRows:
        """Extend all partial schedules action by action; return the best complete one."""
        layer = [_Node((0, 0), self.start(), None, ())]
        complete, looked_at = True, 0
        for _ in range(3 * self._task.num_microbatches * (self._last + 1)):
            looked_at += len(layer)
            if most is not None and looked_at > most:
                return FoundRows(None, self._best, complete=False)
            layer = self._next_layer(layer)
            if width is not None and len(layer) > width:
                layer = sorted(layer, key=lambda node: (node.bound, sum(node.state.free)))[:width]
                complete = False
        if not layer:
            return FoundRows(None, self._best, complete)
        best = min(layer, key=lambda node: node.bound)
        return FoundRows(self._rows_of_node(best), best.bound, complete)

    def _next_layer(self, layer: list[_Node]) -> list[_Node]:
        """Return all partial schedules of one more action, without dominated ones."""
        found: dict[tuple[tuple[int, int, int], ...], list[_Node]] = {}
        for node in layer:
            for stage, kind, start in self._alternative_actions(node.state):
                state = self._state_after(node.state, stage, kind, start)
                bound = self._bounds_if_better(state)
                if bound is None:
                    continue
                new = _Node(bound, state, (stage, kind, node.way), _comparison_times(state))
                others = found.setdefault(state.done, [])
                if not any(_dominates(other.times, new.times) for other in others):
                    others[:] = [other for other in others if not _dominates(new.times, other.times)]
                    others.append(new)
        return list(itertools.chain.from_iterable(found.values()))

    def _alternative_actions(self, state: _State) -> list[tuple[int, Kind, int]]:
        """Return (stage, kind, start) of the alternative next actions, all on one stage."""
        task = self._task
        first_end: float = math.inf
        best: list[tuple[int, Kind, int, int]] = []
        for stage, (forwards, inputs, weights) in enumerate(state.done):
            free = state.free[stage]
            able: list[tuple[int, Kind, int, int]] = []
            if weights < inputs:
                able.append((stage, "W", free, free + task.weight[stage]))
            if state.inputs[stage]:
                start = max(free, state.inputs[stage][0])
                able.append((stage, "I", start, start + task.input[stage]))
            if state.forwards[stage]:
                alive = forwards - inputs + task.weight_memory * (inputs - weights)
                if alive + 1 <= task.limit + _ROUNDING:
                    start = max(free, state.forwards[stage][0])
                    able.append((stage, "F", start, start + task.forward[stage]))
            soonest = min((end for *_, end in able), default=math.inf)
            if soonest < first_end:
                first_end, best = soonest, able
        return [(stage, kind, start) for stage, kind, start, end in best if start < first_end or end == first_end]

    def _state_after(self, state: _State, stage: int, kind: Kind, start: int) -> _State:
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
        return _State(_replace_item(done, stage, did), _replace_item(free, stage, end), forwards, inputs)

    def _bounds_if_better(self, state: _State) -> Value | None:
        first = self.bound(state, 0)
        if first > self._best[0]:
            return None
        second = self.bound(state, 1)
        return None if (first, second) >= self._best else (first, second)

    def bound(self, state: _State, goal: int) -> int:
        """Return a lower bound on the goal over all completions of a partial schedule."""
        task, offsets = self._task, self._task.offsets[goal]
        if goal not in self._tails:
            self._tails[goal] = _tail_times(task, offsets)
        tails, total, most = self._tails[goal], task.num_microbatches, 0
        next_forward, next_input = self._earliest_starts(state)
        for stage, (forwards, inputs, weights) in enumerate(state.done):
            forward, input_, weight = task.forward[stage], task.input[stage], task.weight[stage]
            begin = state.free[stage]
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

    def _earliest_starts(self, state: _State) -> tuple[list[int], list[int]]:
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

    def _rows_of_node(self, node: _Node) -> tuple[tuple[Action, ...], ...]:
        rows: list[list[Kind]] = [[] for _ in range(self._last + 1)]
        way = node.way
        while way is not None:
            stage, kind, way = way
            rows[stage].append(kind)
        return tuple(tuple(_number_microbatches(reversed(row))) for row in rows)


@dataclass(frozen=True, slots=True)
class _Tails:
    """Least time from an action's start to the end of all that must follow it, by stage and microbatch."""

    forward: list[list[int]]
    input: list[list[int]]
    weight: list[list[int]]


def _tail_times(task: OrderingTask, offsets: Sequence[int]) -> _Tails:
    """Compute the least time from each action's start to the end of everything that must follow it."""
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
    return _Tails(forward, input_, weight)


def _replace_item(row: tuple[_Each, ...], place: int, value: _Each) -> tuple[_Each, ...]:
    return (*row[:place], value, *row[place + 1 :])


def _comparison_times(state: _State) -> tuple[int, ...]:
    """Return the times that compare two partial schedules of equal progress: the one with no later times dominates."""
    found = list(state.free)
    for free, arrivals in zip(state.free[1:] + state.free, state.forwards[1:] + state.inputs, strict=True):
        found += [max(free, arrival) for arrival in arrivals]
    return tuple(found)


def _dominates(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return all(map(int.__le__, one, other))


def _number_microbatches(kinds: Iterator[Kind]) -> Iterator[Action]:
    counts: dict[Kind, int] = {"F": 0, "I": 0, "W": 0}
    for kind in kinds:
        yield Action(kind, counts[kind])
        counts[kind] += 1
