"""Rounding of simulated durations to multiples of a tick, so that float64 sums of durations are exact.

A tick is 2**-44 s (57 femtoseconds). Sums and differences of such numbers are exact up to 512 s, so addition is
associative: both engines, a rank that represents many, and a vectorised longest path give the same bits. Longer
simulations use a grid of 16 times the tick (0.9 picoseconds, exact up to 8,192 s), 256 times (15 ps, 36 hours), and so
on: ``simulate_on_exact_grid``.

A profile is a factor that changes at given instants, such as the slowdown of a GPU or the remaining share of a link.
Its instants lie on the grid, so all its readers see a change at the same instant. Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.progress import check_event_count, set_in_context

ResultT = TypeVar("ResultT")
ParamsT = ParamSpec("ParamsT")

_FINEST = 2.0**44
_COARSER = 16.0
_EXACT_TICKS = 2.0**53
TICK = 1.0 / _FINEST
"""Tick of the finest grid, in seconds."""


class ClockGrid(NamedTuple):
    """Ticks per second of the simulation clock, and the simulated time (s) up to which sums are exact."""

    ticks_per_second: float = _FINEST
    exact_until: float = math.inf


_ALONE = ClockGrid()
_grid: ContextVar[ClockGrid] = ContextVar("grid", default=_ALONE)


class ClockRangeError(Exception):
    """Error raised when simulated time leaves the clock's exact range; only ``simulate_on_exact_grid`` catches it."""


def round_to_tick(seconds: float) -> float:
    """Round a duration (s) to the nearest tick of the current simulation clock; infinity stays infinity."""
    ticks_per_second = _grid.get()[0]
    ticks = seconds * ticks_per_second
    return round(ticks) / ticks_per_second if math.isfinite(ticks) else seconds


def tick_seconds() -> float:
    """Return the length (s) of a tick of the current simulation clock."""
    return 1.0 / _grid.get().ticks_per_second


def round_all_to_tick(seconds: Floats) -> Floats:
    """Round an array of finite durations (s) to ticks of the current simulation clock."""
    ticks_per_second = _grid.get()[0]
    return np.asarray(np.rint(seconds * ticks_per_second) / ticks_per_second)


def exact_time_limit() -> float:
    """Return the simulated time (s) up to which sums of rounded durations are exact; infinite if unlimited."""
    return _grid.get().exact_until


def simulate_on_exact_grid(simulate: Callable[[], ResultT]) -> ResultT:
    """Run a simulation with the shortest clock tick for which all simulated times are exact; return its result.

    The simulation is repeated for every grid that is too fine, each time up to the end of its range. Raises InputError
    for simulated times beyond 2**53 s.
    """
    ticks_per_second = _FINEST
    while ticks_per_second >= 1.0:
        try:
            with set_in_context(_grid, ClockGrid(ticks_per_second, _EXACT_TICKS / ticks_per_second)):
                return simulate()
        except ClockRangeError:
            ticks_per_second /= _COARSER
    raise InputError(
        f"the steps would take longer than {_EXACT_TICKS:.2g} s, the most that can be simulated: check the units of "
        "speeds, as in cluster.scale.flops or a link's bandwidth"
    )


def bind_to_current_grid(function: Callable[ParamsT, ResultT]) -> Callable[ParamsT, ResultT]:
    """Bind a function to the current clock tick, so that later calls round times to that tick."""
    return partial(_call_on_grid, _grid.get(), function)


def _call_on_grid(
    grid: ClockGrid, function: Callable[ParamsT, ResultT], *args: ParamsT.args, **kwargs: ParamsT.kwargs
) -> ResultT:  # fmt: skip
    with set_in_context(_grid, grid):
        return function(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class WindowProfile:
    """Factor over time that is ``value`` from ``start`` to ``end`` (s) and 1 otherwise; optionally periodic.

    With a ``period`` the value applies in the first ``length`` seconds of each period, from ``start`` on and up to
    ``end``.
    """

    value: float
    start: float = 0.0
    end: float = math.inf
    period: float = math.inf
    length: float = math.inf

    def factor_at(self, instant: float) -> float:
        """Return the factor that applies from ``instant`` (s) on."""
        if not self.start <= instant < self.end:
            return 1.0
        return self.value if instant < self._window_around(instant)[0] else 1.0

    def next_change(self, instant: float) -> float:
        """Return the first time (s) after ``instant`` at which the factor changes."""
        if instant < self.start:
            return self.start
        if instant >= self.end:
            return math.inf
        over, begin = self._window_around(instant)
        if instant < over:
            return over
        return begin if begin < self.end else math.inf

    def _window_around(self, instant: float) -> tuple[float, float]:
        """Return when the value ends in the period around ``instant``, and when the next period begins (s)."""
        if self.period == math.inf:
            return min(self.end, round_to_tick(self.start + self.length)), math.inf
        number = int((instant - self.start) // self.period)
        begin, following = self._period_start(number), self._period_start(number + 1)
        while following <= instant:
            number, begin, following = number + 1, following, self._period_start(number + 2)
        while number and begin > instant:
            number, begin, following = number - 1, self._period_start(number - 1), begin
        return min(self.end, round_to_tick(begin + self.length)), following

    def _period_start(self, number: int) -> float:
        return round_to_tick(self.start + number * self.period)


class Profile(Protocol):
    """Piecewise constant factor over time, such as a GPU's slowdown; equal profiles hash equal."""

    def factor_at(self, instant: float) -> float:
        """Return the factor that applies from ``instant`` (s) on."""

    def next_change(self, instant: float) -> float:
        """Return the first time (s) after ``instant`` at which the factor may change; infinite for never."""


STEADY = WindowProfile(1.0)
_MAX_ALTERNATIONS = 10_000
_SECONDS_PER_PERIOD = 4e-5  # CPU seconds per period; less, in fact, but all are kept in memory


class AlternatingProfile:
    """Factor over time that is in turn ``value`` and 1, in consecutive periods of given lengths.

    ``lengths`` yields the seconds of each period and is read once, for all readers. ``first`` states whether the first
    period has the ``value``.
    """

    def __init__(self, value: float, lengths: Iterable[float], *, first: bool) -> None:
        self._value, self._first = value, first
        self._lengths: Iterator[float] = iter(lengths)
        self._edges = [0.0]

    def factor_at(self, instant: float) -> float:
        """Return the factor that applies from ``instant`` (s) on."""
        period = self._period_at(instant)
        return self._value if (period % 2 == 0) == self._first else 1.0

    def next_change(self, instant: float) -> float:
        """Return the time (s) at which the period around ``instant`` ends and the factor changes."""
        return self._edges[self._period_at(instant) + 1]

    def _period_at(self, instant: float) -> int:
        while self._edges[-1] <= instant:
            self._edges.append(round_to_tick(self._edges[-1] + next(self._lengths)))
            check_event_count("periods of a fault", len(self._edges), _SECONDS_PER_PERIOD, self._edges[-1])
        return bisect_right(self._edges, instant) - 1


@dataclass(frozen=True, slots=True)
class _ProductProfile:
    factors: tuple[Profile, ...]

    def factor_at(self, instant: float) -> float:
        return math.prod(part.factor_at(instant) for part in self.factors)

    def next_change(self, instant: float) -> float:
        return min(part.next_change(instant) for part in self.factors)


def multiply_profiles(parts: Sequence[Profile]) -> Profile:
    """Return one profile that is the product of several factors over time."""
    return parts[0] if len(parts) == 1 else _ProductProfile(tuple(parts))


def first_nonzero_time(profiles: Iterable[Profile], instant: float) -> float:
    """Return the first time (s), from ``instant`` on, at which no profile is 0; infinity if there is none.

    Profiles that have alternated at 0 for 10,000 times are assumed to alternate forever.
    """
    parts = [part for profile in profiles for part in _expand_product(profile)]
    now = instant
    for _ in range(_MAX_ALTERNATIONS):
        closed = [part.next_change(now) for part in parts if part.factor_at(now) == 0]
        if not closed or max(closed) == math.inf:
            return max(closed, default=now)
        now = max(closed)
    return math.inf


def _expand_product(profile: Profile) -> Iterator[Profile]:
    if isinstance(profile, _ProductProfile):
        for part in profile.factors:
            yield from _expand_product(part)
    else:
        yield profile


def slowed_duration(profile: Profile, begin: float, seconds: float) -> float:
    """Return the time (s) that ``seconds`` of work take from time ``begin`` on, slowed down by ``profile``."""
    now, left = begin, seconds
    while True:
        factor, change = profile.factor_at(now), profile.next_change(now)
        if now + left * factor <= change:
            return now + left * factor - begin
        left -= (change - now) / factor
        now = change
