"""Faults that pause a rank's host: which ranks and steps, where in the step, and for how long.

The seed decides all draws.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self

from simcluster.base.units import NamedSeconds
from simcluster.documents.diagnostics import Complaint
from simcluster.documents.spec import Count
from simcluster.faults.draws import Factors, Streams
from simcluster.faults.spec import Setting
from simcluster.faults.where import Number, OnRanks
from simcluster.planning.ops import MAIN, Item, Op, Segment, StageProgram
from simcluster.planning.works import HostWork

_KEY = "stall"
_STREAMS = Streams()

Cause = Literal["garbage_collection", "data_loading", "checkpoint", "validation"]
CAUSE_ENTRIES = {"data_loading": "data", "checkpoint": "checkpoint", "validation": "validation"}
"""Entry of the breakdown for each cause; other causes count as "other"."""
_AT_THE_END = ("checkpoint", "validation")


class Stall(NamedTuple):
    """One pause of a rank's host: step, cause, duration (s), and ``place`` (0 to 1) among the step's passes."""

    step: int
    cause: str
    seconds: float
    place: float


class HostStall(OnRanks):
    """A pause of a rank's process, for which its GPU waits (stream ``host``); by default on all ranks."""

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
    def neutral(self) -> bool:
        return self.seconds == 0

    @property
    def by_chance(self) -> bool:
        """Return whether the stalls' durations, steps or places in a step are random."""
        return self.factor is not None or self.first == "random" or self.cause == "garbage_collection"

    @property
    def shared(self) -> bool:
        """Return whether the stalls are equal on all ranks, in the same steps and equally long."""
        return self.everywhere and not self.by_chance

    def complaints(self, scenario: Any) -> Iterator[Complaint]:
        """Yield errors for ranks that are not in the job, or a first step that is not simulated."""
        yield from super().complaints(scenario)
        if isinstance(self.first, int) and self.first >= scenario.steps:
            what = f"step {self.first} is not simulated: the scenario has {scenario.steps} steps, numbered from 0"
            yield ("first",), f"{what}; set steps to {self.first + 1} or more"

    def remedy(self) -> tuple[str, Self] | None:
        """Return the remedy of planned garbage collection, on all ranks at the beginning of a step."""
        if self.cause != "garbage_collection":
            return None
        planned = self.model_copy(update={"cause": "data_loading", "first": 0})
        return "plan the garbage collection: all ranks together, between steps", planned

    def stalls(self, rank: int, seed: int, steps: int) -> list[Stall]:
        """Return the stalls of a rank in the first N ``steps``."""
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

    def colour(self, rank: int, setting: Setting) -> Hashable:
        """Return the rank's stalls, which are equal for ranks that stall equally; None without stalls."""
        return tuple(self.stalls(rank, setting.seed, setting.batch.steps)) or None

    def program(self, rank: int, program: StageProgram, setting: Setting) -> StageProgram:
        """Return the stage's program with the rank's stalls between the items of the main lane."""
        items = program.lanes[MAIN]
        places, first = StallPlaces(items), sum(map(is_stall, items))
        before: dict[int, list[Item]] = {}
        for number, stall in enumerate(self.stalls(rank, setting.seed, setting.batch.steps), first):
            item = _stall_item(stall.seconds, stall.cause, (_KEY, stall.step, number), stall.step)
            before.setdefault(places.item_index(stall), []).append(item)
        return _insert_items(program, before)


class LateBatches(HostStall):
    """Delays of ranks that wait for data, ``late[rank][step]`` in s; made by ``scenario.loading``."""

    seconds: NamedSeconds = 0.0
    late: tuple[tuple[float, ...], ...]

    @property
    def neutral(self) -> bool:
        return not any(any(own) for own in self.late)

    @property
    def shared(self) -> bool:
        return len(set(self.late)) == 1

    def stalls(self, rank: int, seed: int, steps: int) -> list[Stall]:
        """Return the delays of a rank as stalls."""
        found = enumerate(self.late[rank])
        return [Stall(step, self.cause, seconds, 0.0) for step, seconds in found if seconds]


class StallPlaces:
    """Positions of stalls on a main lane: the number of the item that each comes before."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._passes: dict[int, list[int]] = {}
        self._behind: dict[int, int] = {}
        for index, item in enumerate(items):
            self._behind[item.step] = index + 1
            if item.microbatch >= 0:
                self._passes.setdefault(item.step, []).append(index)

    def item_index(self, stall: Stall) -> int:
        """Return the item number before which a stall is inserted; after the last item for one at the end."""
        if stall.cause in _AT_THE_END:
            return self._behind[stall.step]
        passes = self._passes[stall.step]
        return passes[int(stall.place * len(passes))]


def is_stall(item: Item) -> bool:
    """Return whether an item is a stall that a fault inserted."""
    return isinstance(item.key, tuple) and item.key[:1] == (_KEY,)


def _stall_item(seconds: float, cause: str, key: tuple[object, ...], step: int) -> Item:
    return Item(Segment((Op(HostWork(seconds), "host", CAUSE_ENTRIES.get(cause, "other"), cause),)), key, step=step)


def _insert_items(program: StageProgram, before: dict[int, list[Item]]) -> StageProgram:
    items = program.lanes[MAIN]
    found: list[Item] = []
    for index, item in enumerate(items):
        found += [*before.get(index, ()), item]
    return StageProgram(program.stage, {**program.lanes, MAIN: found + before.get(len(items), [])})
