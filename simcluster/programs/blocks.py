"""Basic blocks of a chain, row by row: which rows go on beside each other, how fast, and what follows them.

A *block* of a chain begins with a row that waits for all before it and that all behind it wait for: from there on the
chain does not know what was before.  Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from simcluster.base.clock import on_grid
from simcluster.planning.ops import Op
from simcluster.programs.program import ChainPace

Times = list[tuple[float, float]]
"""Start and end of rows, in seconds."""

Before = list[tuple[int, ...]]
"""What every row waits for: rows before it."""

Regime = tuple[tuple[float, float], ...]
"""For every rank of a chain: the pressure from outside, and what its speed multiplies its computation by."""


class ChainRows(NamedTuple):
    """The rows of a chain: their paces, what they wait for, whose they are (the place of their rank in a regime; of
    what several share it does not matter), and the first of every block with the end of the last; before the first
    block that begins with one row there may be one that begins with several."""

    paces: Sequence[ChainPace]
    before: Before
    whose: Sequence[int]
    blocks: Sequence[int]


def before_by_lanes(paces: Sequence[ChainPace | Op]) -> Before:
    """What rows, or ops, wait for: the one before on their lane, and what they name."""
    before: Before = []
    lanes: dict[str, int] = {}
    for row, pace in enumerate(paces):
        last = lanes.get(pace.lane, -1)
        before.append(pace.after if last < 0 or last in pace.after else (last, *pace.after))
        lanes[pace.lane] = row
    return before


def blocks_of(before: Before) -> list[int]:
    """Where blocks begin, and the end of the last one."""
    waits_for_all = []
    ends: dict[int, None] = {}  # rows that nobody has waited for yet: they lead to all others
    for row, others in enumerate(before):
        for other in others:
            ends.pop(other, None)
        waits_for_all.append(not ends)
        ends[row] = None
    behind: list[list[int]] = [[] for _ in before]
    for row, others in enumerate(before):
        for other in others:
            behind[other].append(row)
    found = [len(before)]
    begins: dict[int, None] = {}  # of the rows behind this one, those that wait for none of them
    for row in range(len(before) - 1, -1, -1):
        for other in behind[row]:
            begins.pop(other, None)
        if waits_for_all[row] and not begins:
            found.append(row)
        begins[row] = None
    return found[::-1]


class _Run(NamedTuple):
    """A row that goes on: what is left of it at full speed (s), since when, what multiplies that, when it will end."""

    row: int
    left: float
    since: float
    factor: float
    end: float

    def slowed(self, now: float, factor: float) -> _Run:
        """From this instant on, which is before its end, what is left takes ``factor`` times as long."""
        row, left, since, before, _ = self
        if factor == before:
            return self
        if now > since:
            left -= on_grid((now - since) / before)
            if left < 0.0:
                left = 0.0
            since = now
        return _run((row, left, since, factor, since + (left if factor == 1.0 else on_grid(left * factor))))


_run = partial(tuple.__new__, _Run)  # of a tuple of all: half the time of a call of _Run


class Inside:
    """A block row by row, from its begin at ``now``: ``running`` rows; none when it is over.

    Of the first block of a chain every rank may come ``late``, by so many seconds.
    """

    __slots__ = ("_end", "_first", "_regime", "_rows", "_start", "_todo", "next", "now", "running")

    next: float
    """When the next row ends; the present instant if none goes on."""

    def __init__(self, rows: ChainRows, block: int, now: float, regime: Regime, late: Sequence[float] = ()) -> None:
        self.now, self._regime, self._rows = now, regime, rows
        first, last = rows.blocks[block], rows.blocks[block + 1]
        self._first = first
        self._start = [-1.0] * (last - first)
        self._end = [-1.0] * (last - first)
        self._todo = list(range(first, last))
        self.running: list[_Run] = []  # never changed, but for another list
        self._begin(late)
        self._settle()

    def copy(self) -> Inside:
        """The same state, to look ahead."""
        other: Inside = object.__new__(Inside)
        other.now, other.next, other._regime, other._rows = self.now, self.next, self._regime, self._rows
        other._first, other._todo = self._first, self._todo
        other._start, other._end = self._start.copy(), self._end.copy()
        other.running = self.running
        return other

    def times(self) -> Times:
        """Start and end of every row, once all are over."""
        return list(zip(self._start, self._end, strict=True))

    def end_of(self, row: int) -> float:
        """When a row ended."""
        return self._end[row - self._first]

    @property
    def computes(self) -> bool:
        """Is one of the running rows a computation?"""
        return any(self._rows.paces[each.row].sensitivity is not None for each in self.running)

    def to(self, now: float) -> None:
        """Go on to this instant; what ends then is over."""
        while self.running and self.next <= now:
            self.step()

    def to_end(self) -> None:
        """Go on until it is over."""
        while self.running:
            self.step()

    def step(self) -> None:
        """Go on to the next instant at which a row ends."""
        self.now = self.next
        self._settle()

    def change(self, now: float, regime: Regime) -> None:
        """From this instant on, which is before the next end, that is what slows it down from outside."""
        self.now, self._regime = now, regime
        self._weigh()

    def _settle(self) -> None:
        """End what ends now, begin what can, and weigh what runs beside each other then."""
        now, first = self.now, self._first
        while True:
            running = []
            for each in self.running:
                if each.end == now:
                    self._end[each.row - first] = now
                else:
                    running.append(each)
            if len(running) == len(self.running):
                break
            self.running = running
            if self._todo:
                self._begin()
        self._weigh()

    def _begin(self, late: Sequence[float] = ()) -> None:
        """Begin what follows only rows that are over, each rank's so many seconds from now."""
        end, first, before = self._end, self._first, self._rows.before
        left = []
        for row in self._todo:
            for other in before[row]:
                if other >= first and end[other - first] < 0:
                    left.append(row)
                    break
            else:
                begin, seconds = self.now, self._rows.paces[row].seconds
                if late:
                    begin += late[self._rows.whose[row]]
                self._start[row - first] = begin
                self.running.append(_run((row, seconds, begin, 1.0, begin + seconds)))
        self._todo = left

    def _weigh(self) -> None:
        """Rates from this instant on."""
        paces, whose, regime, now = self._rows.paces, self._rows.whose, self._regime, self.now
        inner, soonest = 0.0, math.inf
        for each in self.running:
            own = paces[each.row].pressure
            if own > inner:
                inner = own
        running = []
        for each in self.running:
            sensitivity = paces[each.row].sensitivity
            if sensitivity is not None:
                pressure, slowness = regime[whose[each.row]]
                if inner > pressure:
                    pressure = inner
                each = each.slowed(now, (1.0 + sensitivity * pressure) * slowness)
            if each.end < soonest:
                soonest = each.end
            running.append(each)
        self.running = running
        self.next = soonest if running else now
