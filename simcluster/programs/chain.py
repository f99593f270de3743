"""A chain of ops at work: which of its rows go on, and how fast, while communication beside it comes and goes.

Rows follow each other lane by lane.  A computation takes (1 + sensitivity x pressure) times as long, where pressure is
the strongest of what is there: from outside the chain, or a collective of the chain on another lane; and what the
speed of its rank says at that time beside that (a GPU that throttles).  Whenever one changes the row goes on with what
is left of it, rounded to the clock's grid; so a chain gives the bits of its ops played one by one.  Of ranks that meet
again and again (``engine.lockstep``) one chain has the rows of all.

Blocks have the same offsets whenever nothing changes (``Undisturbed``); only the one in which something does is gone
through row by row (``blocks``).  Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.clock import exact_until, on_grid
from simcluster.base.profiles import STEADY, Profile
from simcluster.programs.blocks import Before, ChainRows, Inside, Regime, Times, before_by_lanes, blocks_of
from simcluster.programs.program import ChainPace


class Chain:
    """The rows of a chain, of one rank, in the order of their lanes; or of several: ``before`` says what they wait for,
    ``whose`` whose they are, ``last`` which is the last of each."""

    def __init__(
        self,
        paces: Sequence[ChainPace],
        before: Before | None = None,
        whose: Sequence[int] = (),
        last: Sequence[int] = (),
    ) -> None:
        before = before_by_lanes(paces) if before is None else before
        blocks = blocks_of(before)
        self.rows = ChainRows(paces, before, whose or [0] * len(paces), blocks if blocks[0] == 0 else [0, *blocks])
        self.last = last or (len(paces) - 1,)
        self._known: dict[Regime, Undisturbed] = {}
        self._steady: dict[tuple[float, ...], Undisturbed] = {}

    def under(self, pressure: float, slowness: float = 1.0) -> Undisturbed:
        """The whole chain of one rank from 0 on, under one pressure from outside and at one speed."""
        return self.undisturbed(((pressure, slowness),))

    def pressed(self, pressures: tuple[float, ...]) -> Undisturbed:
        """The whole chain from 0 on under these pressures from outside, while its ranks keep their speed."""
        known = self._steady.get(pressures)
        if known is None:
            known = self._steady[pressures] = self.undisturbed(tuple([(pressure, 1.0) for pressure in pressures]))
        return known

    def undisturbed(self, regime: Regime) -> Undisturbed:
        """The whole chain from 0 on while what slows its ranks down stays."""
        known = self._known.get(regime)
        if known is None:
            known = self._known[regime] = Undisturbed(self.rows, regime)
        return known

    def least(self) -> float:
        """Seconds until the first rank is over at the least: nothing slows down any row."""
        ends: list[float] = []
        for pace, before in zip(self.rows.paces, self.rows.before, strict=True):
            ends.append(max([ends[row] for row in before], default=0.0) + pace.seconds)
        return min(ends[row] for row in self.last)


class Undisturbed:
    """When rows start and end, in seconds from the chain's start, while pressures from outside and speeds stay.

    ``begins`` has the begin of every block, and the end of the last, which is the chain's: ``last``.
    """

    def __init__(self, rows: ChainRows, regime: Regime) -> None:
        self.regime = regime
        self._rows = rows
        self.start: list[float] = []
        self.end: list[float] = []
        self.begins = [0.0]
        now = 0.0
        for block, first in enumerate(rows.blocks[:-1]):
            if rows.blocks[block + 1] == first + 1:
                over = now + _alone(rows.paces[first], *regime[rows.whose[first]])
                times = [(now, over)]
            else:
                inside = Inside(rows, block, 0.0, regime)
                inside.to_end()
                over = now + inside.now
                times = [(now + start, now + end) for start, end in inside.times()]
            for start, end in times:
                self.start.append(start)
                self.end.append(end)
            self.begins.append(over)
            now = over
        self.last = now
        self._arrays: tuple[Floats, Floats] | None = None
        self._states: dict[int, tuple[list[float], list[Inside]]] = {}  # of blocks that were entered

    def inside(self, block: int, after: float) -> Inside:
        """The block, so many seconds after its begin, row by row, to go on from there."""
        states = self._states.get(block)
        if states is None:
            states = self._states[block] = self._all_states(block)
        instants, found = states
        return found[bisect_right(instants, after) - 1].copy()

    def _all_states(self, block: int) -> tuple[list[float], list[Inside]]:
        inside = Inside(self._rows, block, 0.0, self.regime)
        instants: list[float] = []
        found: list[Inside] = []
        while inside.running:
            instants.append(inside.now)
            found.append(inside.copy())
            inside.step()
        return instants, found

    @property
    def arrays(self) -> tuple[Floats, Floats]:
        """Starts and ends."""
        if self._arrays is None:
            self._arrays = np.array(self.start), np.array(self.end)
        return self._arrays


def _alone(pace: ChainPace, pressure: float, slowness: float) -> float:
    """Seconds of a row with nothing beside it in its chain."""
    if pace.sensitivity is None:
        return pace.seconds
    factor = (1.0 + pace.sensitivity * max(pressure, pace.pressure)) * slowness
    return pace.seconds if factor == 1.0 else on_grid(pace.seconds * factor)


class Playing:
    """A chain that began at an instant, under pressures from outside, one for each of its ranks.

    ``speeds`` are the ranks' over time: they multiply the seconds of computations.  Ranks that do not wait for each
    other at first may come ``late``, by so many seconds.
    """

    __slots__ = ("_block", "_chain", "_change", "_inside", "_known", "_log", "_pressures", "_since", "_slowness",
                 "_speeds")  # fmt: skip

    def __init__(
        self, chain: Chain, now: float, pressures: Sequence[float], speeds: Sequence[Profile],
        late: Sequence[float] = (),
    ) -> None:  # fmt: skip
        self._chain, self._pressures, self._speeds = chain, tuple(pressures), speeds
        steady = all(speed is STEADY for speed in speeds)
        self._slowness = tuple([1.0 if steady else speed.at(now) for speed in speeds])
        self._change = math.inf if steady else min(speed.after(now) for speed in speeds)
        self._known = chain.undisturbed(tuple(zip(self._pressures, self._slowness, strict=True)))
        self._block = 0  # this one is under way,
        self._since = now  # since this instant,
        # row by row if something has changed since then, or ranks do not begin at once
        self._inside: Inside | None = Inside(chain.rows, 0, 0.0, self._known.regime, late) if late else None
        # what has been played: since an instant blocks from one to another as known, or the rows of one block
        self._log: list[tuple[float, int, int, Undisturbed] | tuple[float, Times]] = []
        self._go(now)

    def advance(self, now: float) -> None:
        """Go on to this instant; what ends then is over."""
        while self._change <= now and not self._over:
            change = self._change
            self._go(change)
            self._slowness = tuple([speed.at(change) for speed in self._speeds])
            self._turn_to(change)
            self._change = min(speed.after(change) for speed in self._speeds)
        self._go(now)

    def press(self, now: float, pressures: Sequence[float]) -> None:
        """From this instant on, these are the pressures from outside."""
        self.advance(now)
        self._pressures = tuple(pressures)
        self._turn_to(now)

    def press_steadily(self, changes: Iterable[tuple[float, tuple[float, ...]]]) -> None:
        """As if ``press`` were called for each of these instants and pressures; no rank changes its speed."""
        for now, pressures in changes:
            self._go(now)
            self._pressures = pressures
            self._switch(now, self._chain.pressed(pressures))

    def ends(self) -> list[float]:
        """When it will be over for each rank if nothing changes but their speeds."""
        if self._change == math.inf:
            return self._steady_ends()
        ahead = self.copy()
        while max(ends := ahead._steady_ends()) > ahead._change:
            ahead.advance(ahead._change)
        return ends

    def computes(self, now: float) -> bool:
        """Does it compute at this instant, or is it in one of its collectives?"""
        self.advance(now)
        ahead = self.copy()
        return not ahead._over and ahead._enter(now).computes

    def turn(self, now: float) -> float:
        """When it will next begin or cease to compute, or be over, if nothing changes; not looked for beyond the grid,
        where sums are rounded and a look ahead may come to stand."""
        computes, until = self.computes(now), exact_until()
        ahead = self.copy()
        while not ahead._over and now < until:
            inside = ahead._enter(now)
            if inside.computes != computes:
                break
            now = min(ahead._since + inside.next, ahead._change)
            ahead.advance(now)
        return now

    def times(self) -> tuple[Floats, Floats]:
        """When rows started and ended, in seconds, of all that are over."""
        starts: list[Floats] = []
        ends: list[Floats] = []
        for each in self._log:
            if len(each) == 2:
                since, times = each
                both = np.array(times) + since
                starts.append(both[:, 0])
                ends.append(both[:, 1])
                continue
            since, block, until, known = each
            rows = slice(self._chain.rows.blocks[block], self._chain.rows.blocks[until])
            shift = since - known.begins[block]
            start, end = known.arrays
            starts.append(start[rows] + shift)
            ends.append(end[rows] + shift)
        return np.concatenate(starts), np.concatenate(ends)

    @property
    def _over(self) -> bool:
        return self._block == len(self._chain.rows.blocks) - 1

    def copy(self) -> Playing:
        """The same state, to go on from here or look ahead."""
        other: Playing = object.__new__(Playing)
        other._chain, other._pressures, other._speeds = self._chain, self._pressures, self._speeds
        other._slowness, other._change, other._known = self._slowness, self._change, self._known
        other._block, other._since, other._log = self._block, self._since, self._log.copy()
        other._inside = self._inside and self._inside.copy()
        return other

    def _steady_ends(self) -> list[float]:
        """When it will be over for each rank if nothing changes at all."""
        known, block, last = self._known, self._block, self._chain.last
        if self._inside is None:
            shift = self._since - known.begins[block]
            return [shift + known.end[row] for row in last]
        ahead = self._inside.copy()
        ahead.to_end()
        if block == len(known.begins) - 2:
            return [self._since + ahead.end_of(row) for row in last]
        shift = self._since + ahead.next - known.begins[block + 1]
        return [shift + known.end[row] for row in last]

    def _go(self, now: float) -> None:
        """Go on to this instant while nothing changes."""
        inside = self._inside
        if inside is not None:
            since = self._since
            inside.to(now - since)
            if inside.running:
                return
            self._log.append((since, inside.times()))
            self._block, self._since, self._inside = self._block + 1, since + inside.now, None
        begins, block, since = self._known.begins, self._block, self._since
        until = bisect_right(begins, now - since + begins[block]) - 1
        if until > block:
            self._log.append((since, block, until, self._known))
            self._block, self._since = until, since + (begins[until] - begins[block])

    def _turn_to(self, now: float) -> None:
        """Go on under other pressures or at other speeds, from this instant on, which has been reached."""
        self._switch(now, self._chain.undisturbed(tuple(zip(self._pressures, self._slowness, strict=True))))

    def _switch(self, now: float, known: Undisturbed) -> None:
        if known is self._known or self._block == len(known.begins) - 1:
            return
        if self._inside is None and self._since == now:  # between two blocks
            self._known = known
            self._go(now)
            return
        inside, after = self._inside, now - self._since
        if inside is None:
            inside = self._inside = self._known.inside(self._block, after)
        inside.change(after, known.regime)
        self._known = known
        if inside.next <= after:
            self._go(now)

    def _enter(self, now: float) -> Inside:
        """The block that is under way row by row, at this instant, which has been reached."""
        if self._inside is None:
            self._inside = self._known.inside(self._block, now - self._since)
        return self._inside
