"""Links on which transfers of a step may meet, and whether they do, by the times at which they went.

It asks less than ``engine.overlaps`` does: transfers of different kinds that are under way together count,
whether they leave room or not, on every link that all of them together may fill.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.programs.program import Meeting
from simcluster.studies.sweep.order import ranges

_ROOM = 1e-9  # as of simulating.encounters: more than any rounding on the way

Use = tuple[Hashable, float, float]
"""Who is on a link, and from when to when after it has begun."""
Bounds = tuple[float, float]
"""When the first of some transfers begins, and the last one."""
Intervals = tuple[Floats, Floats]
"""Begins and ends, one after the other."""


class Overlapping(NamedTuple):
    """Which intervals of two kinds overlap: the numbers of each two, and since when the first do."""

    since: float
    ones: Ints
    others: Ints


class MetPair(NamedTuple):
    """Transfers of two names that are under way together on a link."""

    one: Hashable
    other: Hashable
    overlap: Overlapping


class Crossings:
    """The links that transfers of several kinds may fill together, and who is on each."""

    def __init__(self, meetings: Mapping[Hashable, Meeting], capacity: Sequence[float]) -> None:
        self.meetings, self.capacity = meetings, capacity
        on: dict[int, list[tuple[Hashable, float, float, float]]] = {}
        self.seconds: dict[int, float] = {}
        for name, meeting in meetings.items():
            at = 0.0
            for traffic in meeting.traffics:
                alone = traffic.alone_seconds(capacity) if traffic.round_bytes else traffic.latency_seconds
                if traffic.usage:
                    rate = traffic.alone_rate(capacity)
                    for link, flows in traffic.usage:
                        use = name, at + traffic.latency_seconds, at + alone, flows * rate / capacity[link]
                        on.setdefault(link, []).append(use)
                at += alone
            self.seconds[id(meeting)] = at
        shared = {
            tuple(use[:3] for use in uses): None
            for uses in on.values()
            if len({use[0] for use in uses}) > 1 and sum(use[3] for use in uses) > 1.0 - _ROOM
        }
        self.pairs = list(
            dict.fromkeys(
                (one, other)
                for uses in shared
                for number, one in enumerate(uses)
                for other in uses[:number]
                if one[0] != other[0]
            )
        )
        self.rivals = list(dict.fromkeys((one[0], other[0]) for one, other in self.pairs))
        """Who may meet whom on such a link.  Where one takes no time (``instant``) nobody looks."""
        self.instant = any(begin == end for uses in shared for _, begin, end in uses)
        self._columns()

    def _columns(self) -> None:
        """The pairs as columns of the numbers of their uses."""
        uses = {use: place for place, use in enumerate(dict.fromkeys(chain.from_iterable(self.pairs)))}
        names = {name: place for place, name in enumerate(dict.fromkeys(name for name, _, _ in uses))}
        self.names = list(names)
        self._name = [names[name] for name, _, _ in uses]
        self._within = np.array([bounds for _, *bounds in uses])
        self._sides = np.array([[uses[one], uses[other]] for one, other in self.pairs], dtype=np.int64)

    def met(self, bounds: Mapping[Hashable, Bounds], begins: Callable[[Hashable], Floats]) -> Iterator[MetPair]:
        """Transfers that are under way together on such a link."""
        begun = cache(begins)
        on_link = cache(lambda use: shifted(begun(use[0]), use))
        windows = self.windows(bounds)
        for one, other in self.near(windows, windows):
            found = overlap(on_link(one), on_link(other))
            if found:
                yield MetPair(one[0], other[0], found)

    def windows(self, bounds: Mapping[Hashable, Bounds], *, whole: bool = False) -> Floats:
        """Of every use from when to when there is one of its transfers, [use, 2], told from when these begin; or their
        ``whole`` time, told from when the first begins and the last ends."""
        if not self.pairs:
            return np.zeros((0, 2))
        found = np.array([bounds.get(name, _NEVER) for name in self.names])[self._name]
        return found if whole else found + self._within

    def near(self, ones: Floats, others: Floats) -> list[tuple[Use, Use]]:
        """The pairs whose windows overlap.  Most do not: all 300 of them are looked at for the price of one meet()."""
        if not self.pairs:
            return []
        one, other = ones[self._sides[:, 0]], others[self._sides[:, 1]]
        both = (one[:, 1] > other[:, 0]) & (other[:, 1] > one[:, 0])
        return [self.pairs[number] for number in np.flatnonzero(both).tolist()]


_NEVER: Bounds = math.inf, -math.inf


def shifted(begins: Floats, use: Use) -> Intervals:
    """From when to when transfers are on a link that they use, given when they begin."""
    return begins + use[1], begins + use[2]


def overlap(one: Intervals, other: Intervals) -> Overlapping | None:
    """Which intervals of the one overlap with intervals of the other."""
    if len(one[0]) > len(other[0]):  # each of the few is looked up among the many
        found = overlap(other, one)
        return found and Overlapping(found.since, found.others, found.ones)
    (begin, end), (other_begin, other_end) = one, other
    if len(begin) == 1:  # as most are
        at, stop = int(other_end.searchsorted(begin[0], side="right")), int(other_begin.searchsorted(end[0]))
        if at >= stop:
            return None
        since = max(begin.item(), other_begin.item(at))
        return Overlapping(since, np.zeros(stop - at, dtype=np.int64), np.arange(at, stop))
    first = other_end.searchsorted(begin, side="right")
    counts = other_begin.searchsorted(end) - first
    ones = np.flatnonzero(counts > 0)
    if not len(ones):
        return None
    since = float(np.maximum(other_begin[first[ones]], begin[ones]).min())
    return Overlapping(since, np.repeat(ones, counts[ones]), ranges(first[ones], counts[ones]))
