"""Faults that pause a rank's host process: ranks, steps, position in the step, and duration.

The seed decides all draws.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self

from simcluster.base.units import NamedSeconds
from simcluster.documents.base_spec import Count
from simcluster.documents.diagnostics import KeyProblem
from simcluster.faults.fault_spec import JobContext
from simcluster.faults.random_factors import Factors, RandomStreams
from simcluster.faults.targets import Number, RankFault
from simcluster.planning.ops import MAIN, HostWork, Op, Segment, StageProgram, WorkItem

_KEY = "stall"
_STREAMS = RandomStreams()

Cause = Literal["garbage_collection", "data_loading", "checkpoint", "validation"]
CAUSE_ENTRIES = {"data_loading": "data", "checkpoint": "checkpoint", "validation": "validation"}
"""Entry of the breakdown for each cause; other causes count as "other"."""
_AT_THE_END = ("checkpoint", "validation")


class Stall(NamedTuple):
    """A pause of a rank's host: step, cause, duration (s), and ``position`` as a fraction of the step's passes."""

    step: int
    cause: str
    seconds: float
    position: float


class HostStall(RankFault):
    """Fault: a rank's process pauses and its GPU waits; by default on all ranks."""

    EXAMPLE: ClassVar = {"kind": "host_stall", "cause": "data_loading", "seconds": "100 us"}
    NEUTRAL: ClassVar = {"kind": "host_stall", "cause": "data_loading", "seconds": "0 s"}

    kind: Literal["host_stall"]
    cause: Cause
    """Cause of the stall, which sets its place in a step: data_loading before the first forward, garbage_collection
    before a random pass, checkpoint and validation after the optimizer."""
    seconds: NamedSeconds
    """Duration of one stall."""
    every: Count = 1
    """Number of steps between stalls."""
    first: Number | Literal["random"] = 0
    """Step of the first stall, counted from 0; random: each rank draws one."""
    factor: Factors | None = None
    """Distribution of random factors on the duration; default: none."""
    seed: Number | None = None

    @property
    def is_neutral(self) -> bool:
        return self.seconds == 0

    @property
    def is_random(self) -> bool:
        return self.factor is not None or self.first == "random" or self.cause == "garbage_collection"

    @property
    def delays_all_equally(self) -> bool:
        return self.affects_all_ranks and not self.is_random

    def complaints(self, scenario: Any) -> Iterator[KeyProblem]:
        yield from super().complaints(scenario)
        if isinstance(self.first, int) and self.first >= scenario.steps:
            what = f"step {self.first} is not simulated: the scenario has {scenario.steps} steps, numbered from 0"
            yield ("first",), f"{what}; set steps to {self.first + 1} or more"

    def remedy(self) -> tuple[str, Self] | None:
        if self.cause != "garbage_collection":
            return None
        planned = self.model_copy(update={"cause": "data_loading", "first": 0})
        return "plan the garbage collection: all ranks together, between steps", planned

    def stalls(self, rank: int, seed: int, steps: int) -> list[Stall]:
        """Return a rank's stalls in the first ``steps`` steps."""
        found: list[Stall] = []
        first = self.first
        if first == "random":
            first = int(_STREAMS(seed, _KEY, self.seed, rank).integers(self.every))
        collects = self.cause == "garbage_collection"
        for step in range(first, steps, self.every):
            place, seconds = 0.0, self.seconds
            if collects or self.factor:
                chance = _STREAMS(seed, _KEY, self.seed, rank, step)
                place = float(chance.random()) if collects else 0.0
                seconds *= float(self.factor.draw(chance, 1)[0]) if self.factor else 1.0
            found.append(Stall(step, self.cause, seconds, place))
        return found

    def symmetry_key(self, rank: int, setting: JobContext) -> Hashable:
        return tuple(self.stalls(rank, setting.seed, setting.batch.steps)) or None

    def change_program(self, rank: int, program: StageProgram, setting: JobContext) -> StageProgram:
        items = program.lanes[MAIN]
        places, first = StallPositions(items), sum(map(is_stall, items))
        before: dict[int, list[WorkItem]] = {}
        for number, stall in enumerate(self.stalls(rank, setting.seed, setting.batch.steps), first):
            item = _stall_item(stall.seconds, stall.cause, (_KEY, stall.step, number), stall.step)
            before.setdefault(places.item_index(stall), []).append(item)
        return _insert_items(program, before)


class StallPositions:
    """Finder of the work item in a program before which a stall is inserted."""

    def __init__(self, items: Sequence[WorkItem]) -> None:
        self._passes: dict[int, list[int]] = {}
        self._behind: dict[int, int] = {}
        for index, item in enumerate(items):
            self._behind[item.step] = index + 1
            if item.microbatch >= 0:
                self._passes.setdefault(item.step, []).append(index)

    def item_index(self, stall: Stall) -> int:
        """Return the index of the work item before which to insert a stall; past the last if at the end."""
        if stall.cause in _AT_THE_END:
            return self._behind[stall.step]
        passes = self._passes[stall.step]
        return passes[int(stall.position * len(passes))]


def is_stall(item: WorkItem) -> bool:
    """Return whether a work item is a stall inserted by a fault."""
    return isinstance(item.key, tuple) and item.key[:1] == (_KEY,)


def _stall_item(seconds: float, cause: str, key: tuple[object, ...], step: int) -> WorkItem:
    return WorkItem(Segment((Op(HostWork(seconds), "host", CAUSE_ENTRIES.get(cause, "other"), cause),)), key, step=step)


def _insert_items(program: StageProgram, before: dict[int, list[WorkItem]]) -> StageProgram:
    items = program.lanes[MAIN]
    found = [each for index, item in enumerate(items) for each in (*before.get(index, ()), item)]
    return StageProgram(program.stage, {**program.lanes, MAIN: found + before.get(len(items), [])})
