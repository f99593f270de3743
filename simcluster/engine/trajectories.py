"""Memoised timings of chains under pressures that come and go: worked out once, however many ranks have the same.

Between two looks at a chain a course counts instants from the chain's begin, so that equal ranks, and the same
microbatch after microbatch, have the same ones; times are on the clock's grid, where that does not change a bit.
(Of the 19,274 changes of Llama 3 405B on 256 ranks, each played by itself, 1,798 differ.)
"""

from __future__ import annotations

from typing import Protocol

from simcluster.base.arrays import Floats
from simcluster.base.profiles import STEADY
from simcluster.programs.chain import Chain, Playing

Pressures = tuple[float, ...]
"""What presses on each of a chain's ranks from outside."""

Change = tuple[float, Pressures]
"""Pressures from an instant on, in seconds from a chain's begin."""

RowEnds = tuple[Floats, Floats]
"""When rows start and when they end, in seconds."""


class TimedChain(Protocol):
    """Knows when the rows of a chain started and ended, in seconds from its begin."""

    def times(self) -> RowEnds:
        """Starts and ends."""


class Courses:
    """Those of a chain whose ranks keep their speed.  It takes ``least`` seconds, whatever happens."""

    __slots__ = ("_begun", "chain", "least")

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.least = chain.least()
        self._begun: dict[tuple[Pressures, tuple[float, ...]], Course] = {}

    def under(self, pressures: Pressures, late: tuple[float, ...] = ()) -> Course:
        """The chain under these pressures; its ranks come ``late``, by so many seconds, if any does."""
        known = self._begun.get((pressures, late))
        if known is None:
            playing = Playing(self.chain, 0.0, pressures, [STEADY] * len(pressures), late)
            known = self._begun[pressures, late] = Course(playing, slowed=any(pressures))
        return known


class Course:
    """What becomes of a chain if nothing changes any more: ``ends`` for each rank, in seconds from its begin.

    ``slowed``: has something pressed on it?
    """

    __slots__ = ("_changed", "_playing", "_times", "ends", "slowed")

    def __init__(self, playing: Playing, *, slowed: bool) -> None:
        self._playing = playing
        self.slowed = slowed
        self._changed: dict[tuple[Change, ...], Course] | None = None  # most have none
        self._times: RowEnds | None = None
        self.ends = playing.ends()

    def after(self, changes: tuple[Change, ...]) -> Course:
        """What becomes of it after these changes, in their order, which come after all that it knows.

        Each is one: from no pressure at all it leads to some.
        """
        if self._changed is None:
            self._changed = {}
        known = self._changed.get(changes)
        if known is None:
            playing = self._playing.copy()
            playing.press_steadily(changes)
            known = self._changed[changes] = Course(playing, slowed=True)
        return known

    def times(self) -> RowEnds:
        """When rows start and end."""
        if self._times is None:
            playing = self._playing.copy()
            playing.advance(max(self.ends))
            self._times = playing.times()
        return self._times
