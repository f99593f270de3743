"""What communication does to computation beside it, for all ranks of a stage at once.  An accelerator of the engine.

A ``Track`` has what one lane sends past the ranks of a stage, in order: begin and end of each flight at every place.
A computation goes on at 1 / (1 + sensitivity x pressure), the strongest of what is there counts, and what is left is
rounded to the clock's grid whenever that changes: the reference's arithmetic (``reference.plain.Left``), in arrays.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simcluster.base.arrays import Bools, Floats
from simcluster.base.clock import all_on_grid


class Track:
    """Flights of one lane past the places of a stage, one after the other at each; those not known yet never come."""

    def __init__(self, pressures: Sequence[Floats]) -> None:
        self._begin, self._end = np.full((2, len(pressures) + 1, len(pressures[0])), np.inf)
        kinds = {id(each): each for each in pressures}
        numbers = {name: number for number, name in enumerate(kinds)}
        self._kinds = np.stack(list(kinds.values()))
        self._kind = np.array([*(numbers[id(each)] for each in pressures), 0])
        first = self._kinds.flat[0]
        self._only = np.broadcast_to(first, len(pressures[0])) if (self._kinds == first).all() else None
        self._places = np.arange(len(pressures[0]))
        self.rewind()

    def rewind(self) -> None:
        """From the first flight on."""
        self._at = np.zeros(len(self._places), dtype=np.int64)
        self._stale = True

    def set(self, number: int, begin: Floats, end: Floats) -> bool:
        """A flight is known: is it another than before?"""
        if np.array_equal(self._begin[number], begin) and np.array_equal(self._end[number], end):
            return False
        self._begin[number], self._end[number] = begin, end
        self._stale = True
        return True

    def to(self, now: Floats) -> None:
        """Past all that is over by these instants."""
        while True:
            if self._stale:
                self.begin, self.end = self._begin[self._at, self._places], self._end[self._at, self._places]
                self._stale = False
            past = self.end <= now
            if not past.any():
                return
            self._at += past
            self._stale = True

    @property
    def pressure(self) -> Floats:
        """Of the flights that are there or come next."""
        if self._only is not None:
            return self._only
        return np.asarray(self._kinds[self._kind[self._at], self._places])


def when_over(tracks: Sequence[Track], start: Floats, seconds: Floats, sensitivity: float) -> Floats:
    """When computations are over that begin then and take so long with nothing beside them [place].

    Asked in the order in which each rank computes.
    """
    end = start + seconds
    beside = False
    for track in tracks:
        track.to(start)
        beside = beside or bool((track.begin < end).any())
    return _slowed(tracks, start, seconds, sensitivity) if beside else end


def _slowed(tracks: Sequence[Track], start: Floats, seconds: Floats, sensitivity: float) -> Floats:
    now, since, left, factor = start, start, seconds, np.ones_like(start)
    under_way: Bools = np.ones(len(start), dtype=bool)
    while True:
        pressure, change = np.zeros_like(start), np.full_like(start, np.inf)
        for track in tracks:
            track.to(now)
            there = track.begin <= now
            pressure = np.where(there, np.maximum(pressure, track.pressure), pressure)
            change = np.minimum(change, np.where(there, track.end, track.begin))
        other = 1.0 + sensitivity * pressure
        turns = under_way & (other != factor)
        done = all_on_grid((now - since) / factor)
        left = np.where(turns, np.maximum(0.0, left - done), left)
        since, factor = np.where(turns, now, since), np.where(turns, other, factor)
        end = since + np.where(factor == 1.0, left, all_on_grid(left * factor))
        under_way = under_way & (change < end)
        if not under_way.any():
            return np.asarray(end)
        now = np.where(under_way, change, now)
