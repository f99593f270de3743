"""Classes of equal ranks, groups and links of a whole job, from what its window shows.

The same that ``fold`` finds in the whole, number by number.  Pure; imports fold and window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from simcluster.colours import bits, compact, mixed, numbered
from simcluster.lowering.communicators import Communicators
from simcluster.lowering.fold import Carried, Classes, Numbered, carried, classes_of, coloured
from simcluster.lowering.window import NotAlikeError, Window, shown
from simcluster.traffic.bindings import Bindings, Floats, Ints

_FEW = 4096  # whole numbers of flows up to this are their own names


def classes_in_window(communicators: Communicators, window: Window, capacity: Floats) -> Classes:
    """``fold.partition`` of ranks that differ by their stage alone; ``capacity`` is B/s per link."""
    bindings, own = shown(communicators.bindings, window, communicators.like)
    by_link = bits(capacity).view(np.int64)
    stages = communicators.stage_of[window.ranks].tolist()
    of_rank, of_group = coloured(stages, bindings, by_link, communicators.heeded((), capacity, (), bindings))
    alone = _Apart(communicators.apart, len(capacity))
    used, of_link = _links(bindings, of_group[0], window.links.link, by_link, alone)
    number = {int(each): place for place, each in enumerate(own)}
    there, _, order, starts = bindings.on_links

    def on_link(place: int) -> Carried:
        link = int(used[place])
        begin = int(np.searchsorted(there, window.links.link[link]))
        found = begin < len(there) and there[begin] == window.links.link[link]
        rows = order[starts[begin] : starts[begin + 1]] if found else order[:0]
        user, use, flows = alone.on_link(link)
        return (
            np.concatenate([bindings.user[rows], [number[each] for each in user]]).astype(np.int64),
            np.concatenate([bindings.place[rows], use]).astype(np.int64),
            np.concatenate([bindings.flows[rows], flows]),
        )

    place = np.full(len(window.rank), -1, dtype=np.int64)
    place[window.ranks] = np.arange(len(window.ranks))
    whole = of_rank[0][place[window.rank]], window.ranks[of_rank[1]]
    found = classes_of(whole, of_group, of_link, used, bindings, on_link)
    return replace(found, of_communicator=tuple(of_group[0][np.searchsorted(own, communicators.like)].tolist()))


class _Apart:
    """What groups use that are drawn whole: ``links``, and a number for each link, equal where as much is carried."""

    def __init__(self, apart: Mapping[int, Sequence[tuple[Ints, Floats]]], num_links: int) -> None:
        self._parts = [(number, place, *use) for number, uses in apart.items() for place, use in enumerate(uses)]
        self.code: npt.NDArray[np.int32 | np.int64] = np.zeros(num_links, dtype=np.int32)
        for *_, link, flows in self._parts:
            amount = np.zeros(num_links, dtype=np.int32)
            amount[link] = 1 + _named(flows)
            self.code = compact(self.code * (int(amount.max()) + 1) + amount)[1] if self.code.any() else amount
        self.links = np.concatenate([link for *_, link, _ in self._parts] or [np.zeros(0, dtype=np.int64)])

    def on_link(self, link: int) -> tuple[list[int], list[int], list[float]]:
        """By which of them, in which usage, and by how many flows a link is used."""
        numbers, uses, found = [], [], []
        for number, place, links, flows in self._parts:
            row = int(np.searchsorted(links, link))
            if row < len(links) and links[row] == link:
                numbers.append(number)
                uses.append(place)
                found.append(float(flows[row]))
        return numbers, uses, found


def _links(
    bindings: Bindings, of_group: Ints, counterpart: Ints, by_link: Ints, apart: _Apart
) -> tuple[Ints, Numbered]:
    """The links that are used, ascending, and their classes: by what their counterparts carry, and those apart."""
    window = np.flatnonzero(counterpart == np.arange(len(counterpart)))
    place = np.full(len(counterpart), -1, dtype=np.int32)
    place[window] = np.arange(len(window))
    there = bindings.on_links[0]
    loads = mixed(by_link[window])
    loads[place[there]] ^= carried(of_group, bindings)
    busy = np.zeros(len(window) + 1, dtype=bool)  # the last: of links without a counterpart
    busy[place[there]] = True
    own = np.where(counterpart >= 0, place[counterpart], np.int32(len(window)))
    if (place[there] < 0).any() or (own[apart.links] == len(window)).any():
        raise NotAlikeError
    is_used = busy[own]
    is_used[apart.links] = True
    used = np.flatnonzero(is_used)
    sort = (numbered(loads)[0] * (int(apart.code.max(initial=0)) + 1)).astype(np.int32)
    kind = sort[own[used]] + apart.code[used]
    first = np.full(int(kind.max(initial=-1)) + 1, -1, dtype=np.int64)
    first[kind[::-1]] = np.arange(len(kind))[::-1]
    kinds = np.flatnonzero(first >= 0)
    kinds = kinds[np.argsort(first[kinds])]
    number = np.empty(len(first), dtype=np.int64)
    number[kinds] = np.arange(len(kinds))
    return used, (number[kind], first[kinds])


def _named(flows: Floats) -> Ints:
    """Numbers of flows as whole numbers, equal for equal ones."""
    whole = flows.astype(np.int64)
    if (whole == flows).all() and whole.max(initial=0) < _FEW:
        return whole
    return np.unique(flows, return_inverse=True)[1]
