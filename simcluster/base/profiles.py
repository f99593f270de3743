"""Factors that change at given instants: how much slower a GPU is, how much of a link is left, as time goes on.

A profile is 1 outside what it describes.  Instants lie on the clock's grid, so all that reads one sees a change at the
same moment.  Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from simcluster.base.clock import on_grid
from simcluster.base.telling import require_few


@dataclass(frozen=True, slots=True)
class Window:
    """``value`` from ``start`` to ``end`` (s), 1 elsewhere; with a ``period`` in the first ``length`` of each.

    The first period begins at the start; the end cuts what it meets.
    """

    value: float
    start: float = 0.0
    end: float = math.inf
    period: float = math.inf
    length: float = math.inf

    def at(self, instant: float) -> float:
        """The factor from this instant on."""
        if not self.start <= instant < self.end:
            return 1.0
        _, over = self._turn(self._number(instant))
        return self.value if instant < over else 1.0

    def after(self, instant: float) -> float:
        """The next edge of a window."""
        if instant < self.start:
            return self.start
        if instant >= self.end:
            return math.inf
        number = self._number(instant)
        _, over = self._turn(number)
        if instant < over:
            return over
        begin, _ = self._turn(number + 1)
        return begin if begin < self.end else math.inf

    def _turn(self, number: int) -> tuple[float, float]:
        if math.isinf(self.period):
            return self.start, min(self.end, on_grid(self.start + self.length))
        begin = on_grid(self.start + number * self.period)
        return begin, min(self.end, on_grid(begin + self.length))

    def _number(self, instant: float) -> int:
        """Return the window that began last."""
        if math.isinf(self.period):
            return 0
        number = int((instant - self.start) // self.period)
        while self._turn(number + 1)[0] <= instant:
            number += 1
        while number and self._turn(number)[0] > instant:
            number -= 1
        return number


class Profile(Protocol):
    """A factor over time, constant between instants; equal profiles are equal objects for a dictionary."""

    def at(self, instant: float) -> float:
        """The factor from this instant (s) on."""
        ...

    def after(self, instant: float) -> float:
        """The first instant after this one at which it may change; infinite for never."""
        ...


class SteadyProfile:
    """A factor of 1 at all times."""

    def at(self, instant: float) -> float:
        """Return 1."""
        return 1.0

    def after(self, instant: float) -> float:
        """Return infinity: it never changes."""
        return math.inf


STEADY = SteadyProfile()
_TURNS = 10_000
_SPELL = 4e-5  # processor seconds per period; they take less, but all are kept in memory


class Spells:
    """``value`` in some of the times between successive instants, 1 in the others, turn by turn.

    ``lengths`` gives the seconds of each spell for as long as it is asked; it is asked once, whoever looks.  ``first``:
    is it ``value`` in the first one?
    """

    def __init__(self, value: float, lengths: Iterable[float], *, first: bool) -> None:
        self._value, self._first = value, first
        self._lengths: Iterator[float] = iter(lengths)
        self._edges = [0.0]

    def at(self, instant: float) -> float:
        """The factor from this instant on."""
        spell = self._spell(instant)
        return self._value if (spell % 2 == 0) == self._first else 1.0

    def after(self, instant: float) -> float:
        """The end of the spell that goes on."""
        return self._edges[self._spell(instant) + 1]

    def _spell(self, instant: float) -> int:
        while self._edges[-1] <= instant:
            self._edges.append(on_grid(self._edges[-1] + next(self._lengths)))
            require_few("periods of a fault", len(self._edges), _SPELL, self._edges[-1])
        return bisect_right(self._edges, instant) - 1


@dataclass(frozen=True, slots=True)
class _Product:
    parts: tuple[Profile, ...]

    def at(self, instant: float) -> float:
        return math.prod(part.at(instant) for part in self.parts)

    def after(self, instant: float) -> float:
        return min(part.after(instant) for part in self.parts)


def product(parts: Sequence[Profile]) -> Profile:
    """All of them at once: factors multiply."""
    return parts[0] if len(parts) == 1 else _Product(tuple(parts))


def first_open(profiles: Iterable[Profile], instant: float) -> float:
    """Return the first instant, from this one on, at which no profile is 0; infinity if one of them always is.

    Profiles that have alternated at 0 for 10,000 times are assumed to alternate forever.
    """
    parts = [part for profile in profiles for part in _parts(profile)]
    now = instant
    for _ in range(_TURNS):
        closed = [part.after(now) for part in parts if part.at(now) == 0]
        if not closed or max(closed) == math.inf:
            return max(closed, default=now)
        now = max(closed)
    return math.inf


def _parts(profile: Profile) -> Iterator[Profile]:
    """Yield the profiles whose product a profile is; nested products are expanded."""
    if isinstance(profile, _Product):
        for part in profile.parts:
            yield from _parts(part)
    else:
        yield profile


def stretched(profile: Profile, begin: float, seconds: float) -> float:
    """Seconds that work of so many seconds takes from ``begin`` on, slowed down by the profile's factor."""
    now, left = begin, seconds
    while True:
        factor, change = profile.at(now), profile.after(now)
        if now + left * factor <= change:
            return now + left * factor - begin
        left -= (change - now) / factor
        now = change
