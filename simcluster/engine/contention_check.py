"""Contended transfers of a run: those on a link without room for all of them, by when they began and ended.

A transfer moves at most at the rate that it has alone.  As long as those rates fit on a link together it holds nobody
up, whatever happens elsewhere; what takes no time is crowded by whatever is under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.base.runs import within
from simcluster.reference.record import Record
from simcluster.symmetry.optimistic import Crowd
from simcluster.traffic.traffic import Traffic

_ROOM = 1e-9
"""The part of a link that must be left over: more than any rounding on the way."""


def crowded(record: Record, capacity: Sequence[float]) -> list[Crowd]:
    """Return what every transfer on a crowded link uses, with the class of the link; ``capacity`` is B/s by class."""
    ops, times = record.ops, record.times
    moves = np.array([*(bool(label.traffics) for label in ops.labels), False])
    op = np.flatnonzero((ops.meeting >= 0) & moves[ops.label])
    meetings, first, which = np.unique(ops.meeting[op], return_index=True, return_inverse=True)
    begin, end = np.full(len(meetings), np.inf), np.full(len(meetings), -np.inf)
    np.minimum.at(begin, which, times.start[op])
    np.maximum.at(end, which, times.end[op])
    used = [_parts(label.traffics, capacity) for label in ops.labels]
    count = np.array([len(own) for own in used], dtype=np.int64)
    table = np.array(list(chain.from_iterable(used)), dtype=np.float64).reshape(-1, 2)
    label = ops.label[op[first]]
    user = np.repeat(np.arange(len(meetings)), count[label])
    link, part = table[(np.cumsum(count) - count)[label[user]] + within(count[label])].T
    link = link.astype(np.int64)
    full = (np.bincount(link, part) > 1.0 - _ROOM) & (np.bincount(link) > 1)
    some = np.flatnonzero(full[link])
    those = user[some]
    held = some[_held_back(link[some], begin[those], end[those], part[some])]
    return [
        (traffic.usage, place)
        for number, place in dict.fromkeys(zip(label[user[held]].tolist(), link[held].tolist(), strict=True))
        for traffic in ops.labels[number].traffics
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
