"""The grid that simulated times live on.

Durations are rounded to multiples of a tick, 2**-44 s (57 femtoseconds).  Sums and differences of such numbers are
exact in float64 up to 512 s, so addition is associative: both engines, a rank that represents many, and a vectorised
longest path give the same bits.  What ends later is simulated on a grid of 16 times the tick (0.9 picoseconds, exact
up to 8,192 s), 256 times it (15 ps, 36 hours), and so on: ``on_fitting_grid``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import NamedTuple, ParamSpec, TypeVar

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError

Played = TypeVar("Played")
Given = ParamSpec("Given")

_FINEST = 2.0**44
_COARSER = 16.0
_EXACT_TICKS = 2.0**53
TICK = 1.0 / _FINEST
"""The finest grid's, in seconds."""


class ClockGrid(NamedTuple):
    """Ticks per second, and the instant (s) at which a clock has left the times that are exact on it."""

    ticks_per_second: float = _FINEST
    until: float = math.inf


_ALONE = ClockGrid()
_grid: ContextVar[ClockGrid] = ContextVar("grid", default=_ALONE)


class BeyondGridError(Exception):
    """The clock has come to times that its grid does not keep exact; nobody sees this but ``on_fitting_grid``."""


def on_grid(seconds: float) -> float:
    """The multiple of a tick nearest to a duration in seconds (infinity stays infinity)."""
    ticks_per_second = _grid.get()[0]
    ticks = seconds * ticks_per_second
    return round(ticks) / ticks_per_second if math.isfinite(ticks) else seconds


def tick() -> float:
    """Seconds between two instants of the grid of now."""
    return 1.0 / _grid.get().ticks_per_second


def all_on_grid(seconds: Floats) -> Floats:
    """As ``on_grid``, of many finite durations at once."""
    ticks_per_second = _grid.get()[0]
    return np.asarray(np.rint(seconds * ticks_per_second) / ticks_per_second)


def exact_until() -> float:
    """The instant (s) that a clock may not come to on the grid of now; infinite where nobody looks for another grid."""
    return _grid.get().until


def on_fitting_grid(play: Callable[[], Played]) -> Played:
    """What ``play`` gives on the finest grid on which all of its times are exact.

    It is played anew for every grid that was too fine, until the clock came to where that ended.  Raises InputError
    for what takes longer than 2**53 s.
    """
    ticks_per_second = _FINEST
    while ticks_per_second >= 1.0:
        try:
            with _on(ClockGrid(ticks_per_second, _EXACT_TICKS / ticks_per_second)):
                return play()
        except BeyondGridError:
            ticks_per_second /= _COARSER
    raise InputError(
        f"the steps would take longer than {_EXACT_TICKS:.2g} s, which no clock here counts: look at the units of "
        "speeds, as in cluster.scale.flops or a link's bandwidth"
    )


def later_on_this_grid(function: Callable[Given, Played]) -> Callable[Given, Played]:
    """Return the function, on the grid of now whenever it is called."""
    return partial(_called, _grid.get(), function)


def _called(
    grid: ClockGrid, function: Callable[Given, Played], *args: Given.args, **kwargs: Given.kwargs
) -> Played:  # fmt: skip
    with _on(grid):
        return function(*args, **kwargs)


@contextmanager
def _on(grid: ClockGrid) -> Iterator[None]:
    before = _grid.set(grid)
    try:
        yield
    finally:
        _grid.reset(before)
