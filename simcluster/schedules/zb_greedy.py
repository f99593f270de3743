"""Greedy zero-bubble heuristic: an idle stage runs a pass that is ready, by a fixed order of preference.

The rounds of ``zb_rounds`` need memory for as many microbatches as there are stages; with less they stand still most of
the time, and this does not.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from simcluster.schedules.actions import Action, Kind, Schedule, loop_route

_ROUNDING = 1e-9  # of sums of parts of microbatches


class GreedyBuilder:
    """Builder of a greedy zero-bubble schedule from the pass times of each stage and a memory limit."""

    def __init__(
        self,
        num_microbatches: int,
        limit: int,
        weight_memory: float,
        times: Sequence[dict[Kind, Any]],
        latency: Any,
        order: Sequence[Kind],
    ) -> None:
        self._most, self._limit, self._weight_memory = num_microbatches, limit, weight_memory
        self._times, self._latency, self._order = times, latency, order
        stages = range(len(times))
        self._rows: list[list[Action]] = [[] for _ in stages]
        self._done: list[dict[Kind, int]] = [{"F": 0, "I": 0, "W": 0} for _ in stages]
        self._arrivals: dict[Kind, list[list[Any]]] = {"F": [[] for _ in stages], "I": [[] for _ in stages]}
        self._arrivals["F"][0] = [0] * num_microbatches
        self._free: list[Any] = [0] * len(times)
        self._awake: list[tuple[Any, int]] = [(0, stage) for stage in stages]

    def build_schedule(self) -> Schedule:
        """Build the schedule by simulating each stage whenever it becomes idle or receives an input."""
        while self._awake:
            now, stage = heapq.heappop(self._awake)
            if now >= self._free[stage]:
                kind = next((kind for kind in self._order if self._can_run(stage, kind, now)), None)
                if kind is not None:
                    self._run_next(stage, kind, now)
        return Schedule.with_single_route(loop_route(len(self._rows), 1), "zb-auto", self._rows, self._most)

    def _can_run(self, stage: int, kind: Kind, now: Any) -> bool:
        done = self._done[stage]
        if kind == "W":
            return done["W"] < done["I"]
        arrivals, number = self._arrivals[kind][stage], done[kind]
        if number == len(arrivals) or arrivals[number] > now:
            return False
        alive = done["F"] - done["I"] + self._weight_memory * (done["I"] - done["W"])
        return kind == "I" or bool(alive + 1 <= self._limit + _ROUNDING)

    def _run_next(self, stage: int, kind: Kind, now: Any) -> None:
        """Run the stage's next pass of this kind and queue the stages that can continue at its end."""
        self._rows[stage].append(Action(kind, self._done[stage][kind]))
        self._done[stage][kind] += 1
        end = self._free[stage] = now + self._times[stage][kind]
        heapq.heappush(self._awake, (end, stage))
        last = len(self._rows) - 1
        if kind == "F" and stage == last:
            self._arrivals["I"][stage].append(end)
        elif kind == "F" or (kind == "I" and stage):
            receiver = stage + 1 if kind == "F" else stage - 1
            self._arrivals[kind][receiver].append(end + self._latency)
            heapq.heappush(self._awake, (end + self._latency, receiver))
