"""Host stalls: the ranks and steps that have one, its place among the rank's items, and its duration.

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
from simcluster.planning.works import Host

_KEY = "stall"
_STREAMS = Streams()

Cause = Literal["garbage_collection", "data_loading", "checkpoint", "validation"]
CAUSE_ENTRIES = {"data_loading": "data", "checkpoint": "checkpoint", "validation": "validation"}
"""Entry of the breakdown for each cause; other causes count as "other"."""
_AT_THE_END = ("checkpoint", "validation")


class Stall(NamedTuple):
    """A pause of a rank's host: its step, cause, duration (s), and ``place`` (0 to 1) among the passes."""

    step: int
    cause: str
    seconds: float
    place: float


class HostStall(OnRanks):
    """A pause of a rank's process, for which its GPU waits: a span of the stream ``host``; by default on all ranks."""

    EXAMPLE: ClassVar = {"kind": "host_stall", "cause": "data_loading", "seconds": "100 us"}
    NEUTRAL: ClassVar = {"kind": "host_stall", "cause": "data_loading", "seconds": "0 s"}

    kind: Literal["host_stall"]
    cause: Cause
    """Cause, and so the place in a step: data_loading before the first forward, garbage_collection before a random
    pass, checkpoint and validation after the optimizer."""
    seconds: NamedSeconds
    """Duration."""
    every: Count = 1
    """Every N-th step has it."""
    first: Number | Literal["random"] = 0
    """The first step that has it; random: each rank draws one."""
    factor: Factors | None = None
    """Law of factors on the duration."""
    seed: Number | None = None

    @property
    def neutral(self) -> bool:
        return self.seconds == 0

    @property
    def by_chance(self) -> bool:
        """Return whether its length, its steps, or its place in them are drawn."""
        return self.factor is not None or self.first == "random" or self.cause == "garbage_collection"

    @property
    def shared(self) -> bool:
        """Return whether the stall is planned, on all ranks in the same steps and equally long."""
        return self.everywhere and not self.by_chance

    def complaints(self, scenario: Any) -> Iterator[Complaint]:
        """Yield complaints for ranks that are not in the job or a first step that is not simulated."""
        yield from super().complaints(scenario)
        if isinstance(self.first, int) and self.first >= scenario.steps:
            what = f"step {self.first} is not simulated: the scenario has {scenario.steps} steps, numbered from 0"
            yield ("first",), f"{what}; set steps to {self.first + 1} or more"

    def remedy(self) -> tuple[str, Self] | None:
        """Return the remedy of planned garbage collection at the beginning of a step, on all ranks together."""
        if self.cause != "garbage_collection":
            return None
        planned = self.model_copy(update={"cause": "data_loading", "first": 0})
        return "plan the garbage collection: all ranks together, between steps", planned

    def stalls(self, rank: int, seed: int, steps: int) -> list[Stall]:
        """Return the stalls of a rank."""
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
        """Return the rank's stalls, or None for a rank without any."""
        return tuple(self.stalls(rank, setting.seed, setting.batch.steps)) or None

    def program(self, rank: int, program: StageProgram, setting: Setting) -> StageProgram:
        """Return the program with stalls between the main lane's items, after others' at the same place."""
        items = program.lanes[MAIN]
        places, first = StallPlaces(items), sum(map(is_stall, items))
        before: dict[int, list[Item]] = {}
        for number, stall in enumerate(self.stalls(rank, setting.seed, setting.batch.steps), first):
            item = _stall_item(stall.seconds, stall.cause, (_KEY, stall.step, number), stall.step)
            before.setdefault(places.of(stall), []).append(item)
        return _insert_items(program, before)


class LateBatches(HostStall):
    """Delays of ranks that wait for their host's loader, ``late[rank][step]`` in s; made by ``scenario.loading``."""

    seconds: NamedSeconds = 0.0
    late: tuple[tuple[float, ...], ...]

    @property
    def neutral(self) -> bool:
        return not any(any(own) for own in self.late)

    @property
    def shared(self) -> bool:
        return len(set(self.late)) == 1

    def stalls(self, rank: int, seed: int, steps: int) -> list[Stall]:
        """Return the stalls of a rank."""
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

    def of(self, stall: Stall) -> int:
        """Return the position of a stall; after the last item for one at the end."""
        if stall.cause in _AT_THE_END:
            return self._behind[stall.step]
        passes = self._passes[stall.step]
        return passes[int(stall.place * len(passes))]


def is_stall(item: Item) -> bool:
    """Return whether the item is a stall that this module inserted."""
    return isinstance(item.key, tuple) and item.key[:1] == (_KEY,)


def _stall_item(seconds: float, cause: str, key: tuple[object, ...], step: int) -> Item:
    return Item(Segment((Op(Host(seconds), "host", CAUSE_ENTRIES.get(cause, "other"), cause),)), key, step=step)


def _insert_items(program: StageProgram, before: dict[int, list[Item]]) -> StageProgram:
    items = program.lanes[MAIN]
    found: list[Item] = []
    for index, item in enumerate(items):
        found += [*before.get(index, ()), item]
    return StageProgram(program.stage, {**program.lanes, MAIN: found + before.get(len(items), [])})
