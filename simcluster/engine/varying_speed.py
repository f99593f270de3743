"""Computation at varying speed, change by change: its rank's own speed changes, or it slows down transfers itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from simcluster.base.profiles import STEADY
from simcluster.engine.calendar import Lane
from simcluster.engine.compute_tasks import Member, RankState, Task
from simcluster.engine.trajectories import RowEnds, TimedChain
from simcluster.programs.chain import Chain, Playing


class Followed(Task):
    """Ops of ranks whose speed changes as time goes on, or that slow down transfers; several if they go in step."""

    __slots__ = ("_ends", "_playing", "_pressures", "_slowed", "_varies")

    def __init__(
        self, number: int, members: Sequence[Member], over: Callable[[Task], None], now: float, chain: Chain
    ) -> None:
        super().__init__(number, members, over)
        places = self.places
        self.watches = True
        speeds = [STEADY if place is None else place.speed for place in places]
        self._pressures = [0.0 if place is None else place.pressure for place in places]
        self._varies = any(speed is not STEADY for speed in speeds)
        self._slowed = self._varies or any(self._pressures)
        self._playing = Playing(chain, now, self._pressures, speeds)
        self._ends = self._playing.ends()
        self.next_look = min(self._ends)
        for place in places:
            if place is not None:
                place.watching[self] = None

    def end(self, now: float) -> Sequence[Lane]:
        """Those whose ranks have come to their end now."""
        ended = [member for member, end in enumerate(self._ends) if end == now]
        for member in ended:
            self._ends[member] = math.inf
            self._left(member)
        self.next_look = min(self._ends)
        if ended and self.next_look == math.inf:
            self._playing.advance(now)
        return [self.lanes[member] for member in ended]

    def watch(self) -> Iterable[RankState]:
        """It does."""
        return ()

    def settle(self, now: float) -> None:
        """Go on under the pressures that are now."""
        pressures = self._pressures.copy()
        for member, (place, end) in enumerate(zip(self.places, self._ends, strict=True)):
            if place is not None and end < math.inf:
                pressures[member] = place.pressure
        if pressures == self._pressures:
            return
        self._pressures = pressures
        self._playing.press(now, pressures)
        both = zip(self._ends, self._playing.ends(), strict=True)
        self._ends = [math.inf if before == math.inf else end for before, end in both]
        self.next_look = min(self._ends)
        before = now > self.begin and self._slowed  # at an instant the last word counts
        self._slowed = self._varies or before or any(pressures)

    def computes(self, now: float) -> bool:
        """Does it compute at this instant, or is it in one of its collectives?"""
        return self._playing.computes(now)

    def turn(self, now: float) -> float:
        """When it will next begin or cease to compute, or be over, if nothing changes."""
        return self._playing.turn(now)

    @property
    def slowed(self) -> bool:
        """Did anything press on it, or change its speed?"""
        return self._slowed

    def kept(self) -> TimedChain:
        """When rows started and ended: the chain knows."""
        return _Since(self._playing, self.begin)


class _Since(NamedTuple):
    """A chain that has been played, and when it began."""

    playing: Playing
    begin: float

    def times(self) -> RowEnds:
        """When its rows started and ended, in seconds from its begin."""
        start, end = self.playing.times()
        return start - self.begin, end - self.begin
