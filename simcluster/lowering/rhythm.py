"""A chain of ops at work: which of its rows go on, and how fast, while communication beside it comes and goes.

Rows follow each other lane by lane.  A computation takes (1 + sensitivity x pressure) times as long, where pressure is
the strongest of what is there: from outside the chain, or a collective of the chain on another lane; and what the
speed of its rank says at that time beside that (a GPU that throttles).  Whenever one changes the row goes on with what
is left of it, rounded to the clock's grid; so a chain gives the bits of its ops played one by one.  Pure; imports the
clock, profiles and program.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from simcluster.clock import on_grid
from simcluster.lowering.program import Pace
from simcluster.planning.profiles import STEADY, Profile, Window


class Chain:
    """The rows of a chain: their paces, lane by lane in order, and what is known of it undisturbed (``under``)."""

    def __init__(self, paces: Sequence[Pace]) -> None:
        self.paces = paces
        lanes: dict[str, list[int]] = {}
        for row, pace in enumerate(paces):
            lanes.setdefault(pace.lane, []).append(row)
        self.lanes = list(lanes.values())
        self._known: dict[tuple[float, float], Undisturbed] = {}

    def under(self, pressure: float, slowness: float = 1.0) -> Undisturbed:
        """The whole chain from 0 on, under one pressure from outside and at one speed."""
        known = self._known.get((pressure, slowness))
        if known is None:
            known = self._known[pressure, slowness] = Undisturbed(self, pressure, slowness)
        return known


class Undisturbed:
    """When rows start and end, in seconds from the chain's start, while the pressure from outside and the speed stay.

    ``joints`` are rows that start with all before them over and none beside them: from there on the chain does not know
    what was before.
    """

    def __init__(self, chain: Chain, pressure: float, slowness: float) -> None:
        playing = Playing(chain, 0.0, pressure, Window(slowness))
        self.joints: dict[int, None] = {}
        self.instants: list[float] = []  # when they start
        while playing.running:
            joint = playing.joint()
            if joint >= 0:
                self.joints[joint] = None
                self.instants.append(playing.now)
            playing.step()
        self.start, self.end = playing.start, playing.end
        self.last = playing.now
        self.rows = list(self.joints)


class _Row:
    """A row that goes on: what is left of it at full speed (s), since when, and what multiplies that."""

    __slots__ = ("factor", "left", "row", "since")

    def __init__(self, row: int, left: float, since: float, factor: float = 1.0) -> None:
        self.row, self.left, self.since, self.factor = row, left, since, factor

    @property
    def end(self) -> float:
        return self.since + (self.left if self.factor == 1.0 else on_grid(self.left * self.factor))


class Playing:
    """A chain that began at an instant: ``running`` rows; ``start`` and ``end`` (s) of those that have.

    ``speed`` is its rank's over time: ``slowness`` multiplies the seconds of computations until ``change``.
    """

    def __init__(self, chain: Chain, now: float, pressure: float, speed: Profile = STEADY) -> None:
        self.now = now
        self.pressure = pressure
        self._speed = speed
        self.slowness, self.change = speed.at(now), speed.after(now)
        self.start: list[float] = [-1.0] * len(chain.paces)
        self.end: list[float] = [-1.0] * len(chain.paces)
        self.running: list[_Row] = []
        self._chain = chain
        self._next = [0] * len(chain.lanes)
        self._begin()
        self._settle()

    def copy(self) -> Playing:
        """The same state, to look ahead."""
        other: Playing = object.__new__(Playing)
        other.now, other.pressure, other._chain = self.now, self.pressure, self._chain
        other._speed, other.slowness, other.change = self._speed, self.slowness, self.change
        other.start, other.end, other._next = self.start.copy(), self.end.copy(), self._next.copy()
        other.running = [_Row(each.row, each.left, each.since, each.factor) for each in self.running]
        return other

    @property
    def computes(self) -> bool:
        """Is one of the running rows a computation?"""
        return any(self._chain.paces[each.row].sensitivity is not None for each in self.running)

    def joint(self) -> int:
        """The row that has just started, with all before it over and none beside it; -1 for none."""
        if len(self.running) != 1 or self.running[0].since != self.now:
            return -1
        row = self.running[0].row
        fresh = self.start[row] == self.now and self.running[0].left == self._chain.paces[row].seconds
        in_order = sum(self._next) == row + 1
        return row if fresh and in_order else -1

    def step(self) -> None:
        """Go on to the next instant at which a row ends or the speed changes."""
        self.now = self._next_instant()
        if self.now == self.change:
            self.slowness, self.change = self._speed.at(self.now), self._speed.after(self.now)
        self._settle()

    def _next_instant(self) -> float:
        return min(self.change, *(each.end for each in self.running))

    def advance(self, now: float) -> None:
        """Go on to this instant; what ends then is over."""
        while self.running:
            joint, known = self.joint(), self._chain.under(self.pressure, self.slowness)
            if joint in known.joints:
                self._leap(joint, known, min(now, self.change))
            if self._next_instant() > now:
                break
            self.step()

    def press(self, now: float, pressure: float) -> None:
        """From this instant on, that is the pressure from outside."""
        self.advance(now)
        self.now, self.pressure = now, pressure
        self._weigh()

    def finish(self) -> float:
        """When it will be over if nothing changes."""
        ahead = self.copy()
        while ahead.running:
            joint, known = ahead.joint(), self._chain.under(self.pressure, ahead.slowness)
            if joint in known.joints:
                end = ahead.now + (known.last - known.start[joint])
                if end <= ahead.change:
                    return end
                ahead._leap(joint, known, ahead.change)
            ahead.step()
        return ahead.now

    def turn(self) -> float:
        """When it will next begin or cease to compute, or be over, if nothing changes."""
        ahead, computes = self.copy(), self.computes
        while ahead.running and ahead.computes == computes:
            ahead.step()
        return ahead.now

    def _leap(self, joint: int, known: Undisturbed, now: float) -> None:
        """From a joint to the last one that is not after this instant."""
        shift = self.now - known.start[joint]
        row = known.rows[bisect_right(known.instants, now - shift) - 1]
        if row <= joint:
            return
        self.start[joint:row] = [shift + instant for instant in known.start[joint:row]]
        self.end[joint:row] = [shift + instant for instant in known.end[joint:row]]
        self.now = self.start[row] = shift + known.start[row]
        for lane, rows in enumerate(self._chain.lanes):
            self._next[lane] = bisect_right(rows, row)
        self.running = [_Row(row, self._chain.paces[row].seconds, self.now)]
        self._weigh()

    def _settle(self) -> None:
        """End what ends now, begin what can, and weigh what runs beside each other then."""
        while True:
            over = [each for each in self.running if each.end == self.now]
            if not over:
                break
            for each in over:
                self.end[each.row] = self.now
            self.running = [each for each in self.running if each.end != self.now]
            self._begin()
        self._weigh()

    def _begin(self) -> None:
        """Begin what follows only rows that are over."""
        end = self.end
        for lane, rows in enumerate(self._chain.lanes):
            place = self._next[lane]
            if place == len(rows) or (place and end[rows[place - 1]] < 0):
                continue
            row = rows[place]
            pace = self._chain.paces[row]
            for other in pace.after:
                if end[other] < 0:
                    break
            else:
                self._next[lane] += 1
                self.start[row] = self.now
                self.running.append(_Row(row, pace.seconds, self.now))

    def _weigh(self) -> None:
        """Rates from this instant on."""
        paces = self._chain.paces
        pressure = self.pressure
        for each in self.running:
            pressure = max(pressure, paces[each.row].pressure)
        for each in self.running:
            sensitivity = paces[each.row].sensitivity
            factor = 1.0 if sensitivity is None else (1.0 + sensitivity * pressure) * self.slowness
            if factor != each.factor:
                if self.now > each.since:
                    each.left = max(0.0, each.left - on_grid((self.now - each.since) / each.factor))
                    each.since = self.now
                each.factor = factor
