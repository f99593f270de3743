"""Stalls of hosts: which ranks have one in which steps, where among the rank's items, and for how long.

Pure; imports the faults and ops.  A seed decides all that is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from simcluster.faults import HostStall
from simcluster.faults.draws import Streams
from simcluster.planning.ops import MAIN, Host, Item, Op, Segment, StageProgram

_KEY = "stall"


class Stall(NamedTuple):
    """A rank's host does something else: in which step, why, how long (s); ``place`` (0 to 1) among the passes."""

    step: int
    cause: str
    seconds: float
    place: float
    number: int


def stalls_of(faults: Sequence[HostStall], host_of: Sequence[int], seed: int, steps: int) -> dict[int, list[Stall]]:
    """The stalls of every rank that has some; ``host_of[rank]`` is the rank's machine."""
    found: dict[int, list[Stall]] = {}
    streams = Streams()
    for fault in faults:
        if not fault.neutral:
            for rank in fault.chosen(host_of):
                own = found.setdefault(rank, [])
                own += _drawn(fault, rank, seed, steps, len(own), streams)
    return found


def _drawn(fault: HostStall, rank: int, seed: int, steps: int, number: int, streams: Streams) -> list[Stall]:
    """A rank's stalls by one fault, counted from ``number``."""
    found: list[Stall] = []
    first = fault.first
    if first == "random":
        first = int(streams(seed, _KEY, fault.seed, rank).integers(fault.every))
    collects = fault.cause == "garbage_collection"
    for step in range(first, steps, fault.every):
        place, seconds = 0.0, fault.seconds
        if collects or fault.factor:
            chance = streams(seed, _KEY, fault.seed, rank, step)
            place = float(chance.random()) if collects else 0.0
            seconds *= float(fault.factor.draw(chance, 1)[0]) if fault.factor else 1.0
        found.append(Stall(step, fault.cause, seconds, place, number + len(found)))
    return found


class Places:
    """Where stalls stand on a main lane: by the number of the item that each comes before."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._passes: dict[int, list[int]] = {}
        self._behind: dict[int, int] = {}
        for index, item in enumerate(items):
            self._behind[item.step] = index + 1
            if item.microbatch >= 0:
                self._passes.setdefault(item.step, []).append(index)

    def of(self, stall: Stall) -> int:
        """The place of a stall; behind the last item for one at the end."""
        if stall.cause == "checkpoint":
            return self._behind[stall.step]
        passes = self._passes[stall.step]
        return passes[int(stall.place * len(passes))]

    def possible(self, causes: Iterable[str]) -> list[int]:
        """All places where stalls of these causes can come to stand, ascending."""
        found: dict[int, None] = {}
        for cause in causes:
            if cause == "checkpoint":
                found |= dict.fromkeys(self._behind.values())
            elif cause == "data_loading":
                found |= dict.fromkeys(passes[0] for passes in self._passes.values())
            else:
                found |= dict.fromkeys(index for passes in self._passes.values() for index in passes)
        return sorted(found)


def interrupted(program: StageProgram, stalls: Sequence[Stall]) -> StageProgram:
    """A stage's program with a rank's stalls between the items of its main lane."""
    places = Places(program.lanes[MAIN])
    before: dict[int, list[Item]] = {}
    for stall in stalls:
        item = _item(stall.seconds, stall.cause, (_KEY, stall.step, stall.number), stall.step)
        before.setdefault(places.of(stall), []).append(item)
    return _with(program, before)


def with_room(program: StageProgram, causes: Sequence[str]) -> StageProgram:
    """A stage's program with an item that takes no time, and whose key is ("stall", place), where there may be one."""
    items = program.lanes[MAIN]
    before = {}
    for place in Places(items).possible(causes):
        step = items[min(place, len(items) - 1)].step
        before[place] = [_item(0.0, "stall", (_KEY, place), step)]
    return _with(program, before)


def is_stall(item: Item) -> bool:
    """Is it one of those that this module puts between others?"""
    return isinstance(item.key, tuple) and item.key[:1] == (_KEY,)


def _item(seconds: float, cause: str, key: tuple[object, ...], step: int) -> Item:
    return Item(Segment((Op(Host(seconds), "host", "other", cause),)), key, step=step)


def _with(program: StageProgram, before: dict[int, list[Item]]) -> StageProgram:
    items = program.lanes[MAIN]
    found: list[Item] = []
    for index, item in enumerate(items):
        found += [*before.get(index, ()), item]
    return StageProgram(program.stage, {**program.lanes, MAIN: found + before.get(len(items), [])})
