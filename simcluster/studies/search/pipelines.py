"""Which slices of the model lie on which stages, by a schedule's name: known before the schedule is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from simcluster.planning.job import Slices
from simcluster.scenario.scenario import Scenario
from simcluster.schedules import SCHEDULES, Schedule
from simcluster.schedules.actions import Route


class StageHoldings(NamedTuple):
    """What a stage holds of the model: the numbers of its slices, its layers, how many of these have experts, and
    whether it has the model's ends."""

    slices: tuple[int, ...]
    layers: int
    mixtures: int
    first: bool
    last: bool


class Stage(NamedTuple):
    """What a stage does in a step, as the outline has it: seconds before and during its passes and behind, its layers,
    how many of these have experts, and whether it holds the ends of the model."""

    fill: float
    work: float
    drain: float
    layers: int
    mixtures: int
    first: bool
    last: bool

    @property
    def end(self) -> float:
        """When its own passes are over (s)."""
        return self.fill + self.work


@dataclass(frozen=True)
class PipelineRoute:
    """A route through the stages and the layers of each slice, and which layers have experts (none: no layer has)."""

    route: Route
    counts: tuple[int, ...]
    mixtures: tuple[bool, ...] = ()

    def layers(self, number: int) -> range:
        """Numbers of the layers of one slice."""
        first = sum(self.counts[:number])
        return range(first, first + self.counts[number])

    @cached_property
    def numbered(self) -> list[tuple[int, range]]:
        """Slices by their numbers, with their layers."""
        return [(number, self.layers(number)) for number in range(len(self.counts))]

    @cached_property
    def hops(self) -> list[tuple[int, int]]:
        """Stages that send to another one, forward or back, with that."""
        both = [(here, there) for (here, _), (there, _) in pairwise(self.route) if here != there]
        return list(dict.fromkeys([*both, *((there, here) for here, there in both)]))

    def mixtures_of(self, number: int) -> int:
        """How many layers of one slice have experts."""
        return sum(self.mixtures[layer] for layer in self.layers(number)) if self.mixtures else 0

    @cached_property
    def held(self) -> list[StageHoldings]:
        """What every stage holds."""
        own: list[list[int]] = [[] for _ in range(1 + max(stage for stage, _ in self.route))]
        for number, (stage, _) in enumerate(self.route):
            own[stage].append(number)
        last = len(self.route) - 1
        return [
            StageHoldings(
                tuple(each), sum(self.counts[n] for n in each), sum(map(self.mixtures_of, each)), 0 in each,
                last in each,
            )
            for each in own
        ]  # fmt: skip


def route_of(schedule: str, pp: int, chunks: int) -> Route | None:
    """The way through the stages; None for schedules that hold the model twice, or say nothing of it."""
    route = SCHEDULES[schedule].route
    return route(pp, chunks) if route else None


def pipeline_of(base: Scenario, schedule: str, pp: int, chunks: int) -> PipelineRoute | None:
    """Route and cut; None where the name does not tell the way, the times of a run cut the model, or no cut goes."""
    route, wanted, layers = route_of(schedule, pp, chunks), base.pipeline.layers_per_stage, base.model.layers
    mixtures = tuple(map(base.model.has_experts, range(layers))) if base.model.moe else ()
    if route is None or wanted == "auto":
        return None
    if wanted == "even":
        return None if layers % len(route) else PipelineRoute(route, Slices.even(layers, len(route)).counts, mixtures)
    if len(wanted) == len(route):
        return PipelineRoute(route, wanted, mixtures)
    if len(wanted) != pp:
        return None
    stub = Schedule(schedule, ((),) * pp, 1, len(route) // pp, (route,), (0,))
    return PipelineRoute(route, Slices.of_stages(wanted, stub).counts, mixtures)


Turns = Mapping[tuple[int, int], int]
"""How often each stage goes from a forward on to a backward of the same chunk in a step, by stage and chunk."""


def turns_of(schedule: Schedule) -> Turns:
    """Of a schedule."""
    found = {(stage, chunk): 0 for stage in range(len(schedule.rows)) for chunk in range(schedule.num_chunks)}
    for stage, row in enumerate(schedule.rows):
        passes = [action for action in row if action.kind != "W"]
        for action, following in pairwise(passes):
            if action.kind == "F" != following.kind and action.chunk == following.chunk:
                found[stage, action.chunk] += 1
    return found
