"""A check after the fact: whether transfers of a program ever held each other back, by when its meetings began.

A transfer that has its links to itself, or shares them with others that leave room, moves at the rate that it has
alone, and then the times that were assumed are those of the network: rates are the only solution of max-min fairness,
and one in which nobody is held back is a solution.  Transfers of which one ends as the other begins do not meet.
Zero bytes count as an encounter with whatever is under way.  Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.engine.longest_path import alone_seconds
from simcluster.programs.program import Program
from simcluster.traffic.traffic import Traffic

ROOM = 1e-9
"""The part of a link that must be left over: more than any rounding on the way."""

_END, _POINT_BEGIN, _POINT_END, _BEGIN = range(4)
"""What comes first of equal instants: what takes no time stands between all ends and begins."""


class Encounters:
    """The transfers of a program on the links that more than one of them may load beyond what they carry."""

    def __init__(self, program: Program, capacity: Sequence[float]) -> None:
        table, meeting = on_links(program, lambda traffics: uses(traffics, capacity), 4)
        link = table[:, 0].astype(np.int64)
        crowded = np.bincount(link, table[:, 3], minlength=1) > 1.0 - ROOM
        several = np.bincount(link, minlength=1) > 1
        some = (crowded & several)[link]
        self._link, self._meeting = link[some], meeting[some]
        self._begin, self._end, self._part = table[some, 1:].T

    def first(self, starts: Floats) -> float:
        """Seconds at which a transfer is first held back, infinite for never; ``starts`` [meeting]."""
        if not len(self._link):
            return math.inf
        begin, end = starts[self._meeting] + self._begin, starts[self._meeting] + self._end
        return first_held_back(self._link, begin, end, self._part)


def first_held_back(links: Ints, begin: Floats, end: Floats, part: Floats) -> float:
    """Seconds at which a use of a link, from begin to end, is first held back by others; infinite for never.  ``part``
    is what it takes of the link."""
    point = begin == end
    order = np.lexsort((begin, links))
    later = begin[order][1:] < end[order][:-1]  # quick: neighbours that follow each other cannot meet
    if not (later | point[order][1:] | point[order][:-1])[np.diff(links[order]) == 0].any():
        return math.inf
    instant = np.concatenate([end, begin])
    what = np.concatenate([np.where(point, _POINT_END, _END), np.where(point, _POINT_BEGIN, _BEGIN)])
    order = np.lexsort((what, instant, np.concatenate([links, links])))
    sign = np.repeat([-1.0, 1.0], len(begin))[order]
    # every link's sums come back to 0 at its last end, so that all links can be summed up in one row
    count = np.cumsum(sign)
    load = np.cumsum(sign * np.concatenate([part, part])[order])
    points = np.cumsum(sign * np.concatenate([point, point])[order])
    held = (count > 1.5) & ((load > 1.0 - ROOM) | (points > 0.5))
    return float(instant[order][held].min(initial=math.inf))


def on_links(
    program: Program, uses: Callable[[tuple[Traffic, ...]], Sequence[tuple[float, ...]]], width: int
) -> tuple[Floats, Ints]:
    """What meetings' traffics do on links, rows of so many columns, and the meeting of every row."""
    rows, meetings = [np.zeros((0, width))], [np.zeros(0, dtype=np.int64)]
    numbers: dict[int, list[int]] = {}  # of the meetings by the identity of the traffics that they share
    for number, meeting in enumerate(program.meetings):
        numbers.setdefault(id(meeting.traffics), []).append(number)
    for alike in numbers.values():
        own = np.array(uses(program.meetings[alike[0]].traffics), dtype=np.float64).reshape(-1, width)
        rows.append(np.tile(own, (len(alike), 1)))
        meetings.append(np.repeat(np.array(alike, dtype=np.int64), len(own)))
    return np.concatenate(rows), np.concatenate(meetings)


def uses(traffics: Sequence[Traffic], capacity: Sequence[float]) -> list[tuple[int, float, float, float]]:
    """What each link carries of a meeting's transfers, one after the other: (link, begin, end, part of the link)."""
    found = []
    at = 0.0
    for traffic in traffics:
        end = at + alone_seconds(traffic, capacity)
        if traffic.usage:
            rate = traffic.alone_rate(capacity)
            begin = at + traffic.latency_seconds
            found += [(link, begin, end, flows * rate / capacity[link]) for link, flows in traffic.usage]
        at = end
    return found
