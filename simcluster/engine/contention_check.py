"""Contended transfers of a run: those on a link without room for all of them, by when they began and ended.

A transfer moves at most at the rate that it has alone.  As long as those rates fit on a link together it holds nobody
up, whatever happens elsewhere; what takes no time is crowded by whatever is under way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.engine.lower import Lowered
from simcluster.engine.overlaps import on_links
from simcluster.engine.record import Record
from simcluster.programs.told_ops import first_ops
from simcluster.symmetry.optimistic import Crowd
from simcluster.traffic.traffic import Traffic

_ROOM = 1e-9
"""The part of a link that must be left over: more than any rounding on the way."""


def crowded(lowered: Lowered, record: Record) -> list[Crowd]:
    """Everything that was on a crowded link: what it uses, with the class of the link."""
    program = lowered.played  # what ranks do in step is on links of their own: it takes what it takes alone
    meeting, first = np.array(program.meeting, dtype=np.int64), first_ops(program)
    ops = np.flatnonzero(meeting >= 0)
    begin, end = np.full(len(program.meetings), np.inf), np.full(len(program.meetings), -np.inf)
    np.minimum.at(begin, meeting[ops], record.start[first[ops]])
    np.maximum.at(end, meeting[ops], record.end[first[ops]])
    table, user = on_links(program, lambda traffics: _parts(traffics, lowered.capacity), 2)
    link, part = table[:, 0].astype(np.int64), table[:, 1]
    full = (np.bincount(link, part) > 1.0 - _ROOM) & (np.bincount(link) > 1)
    some = np.flatnonzero(full[link])
    those = user[some]
    held = some[_held_back(link[some], begin[those], end[those], part[some])]
    users = [program.meetings[number].traffics for number in user[held].tolist()]
    pairs = {(id(own), place): own for own, place in zip(users, link[held].tolist(), strict=True)}
    return [
        (traffic.usage, place)
        for (_, place), traffics in pairs.items()
        for traffic in traffics
        if any(place == other for other, _ in traffic.usage)
    ]


def _parts(traffics: Sequence[Traffic], capacity: Sequence[float]) -> list[tuple[int, float]]:
    """What transfers, one after the other, take of each of their links at the most."""
    found: dict[int, float] = {}
    for traffic in traffics:
        rate = traffic.alone_rate(capacity)
        for link, flows in traffic.usage:
            part = flows * rate / capacity[link] if traffic.round_bytes else 1.0
            found[link] = max(found.get(link, 0.0), part)
    return list(found.items())


def _held_back(link: Ints, begin: Floats, end: Floats, part: Floats) -> Bools:
    """Which of these uses of links, from begin to end, are there while a link has no room for all that use it."""
    count = len(link)
    end = np.maximum(end, np.nextafter(begin, np.inf))
    instant, place = np.concatenate([end, begin]), np.concatenate([link, link])
    order = np.lexsort((np.repeat([0, 1], count), instant, place))  # of equal instants ends come first
    sign = np.repeat([-1.0, 1.0], count)[order]
    # every link's sums come back to 0 at its last end, so that all links can be summed up in one row
    there, load = np.cumsum(sign), np.cumsum(sign * np.concatenate([part, part])[order])
    lasts = np.diff(instant[order], append=np.inf) > 0
    before = np.concatenate([[0], np.cumsum((there > 1.5) & (load > 1.0 - _ROOM) & lasts)])
    at = np.empty(2 * count, dtype=np.int64)
    at[order] = np.arange(2 * count)
    found: Bools = before[at[:count]] > before[at[count:]]
    return found
