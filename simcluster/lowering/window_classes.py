"""Classes of equal ranks, groups and links of a whole job, from what its window shows.

The same that ``fold`` finds in the whole, number by number.  Pure; imports fold and window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from simcluster.colours import compact, mixed, numbered
from simcluster.lowering.cells import Odd
from simcluster.lowering.communicators import Communicators
from simcluster.lowering.fold import Carried, Classes, carried, carried_by, classes_of, coloured
from simcluster.lowering.window import NotAlikeError
from simcluster.traffic.bindings import Bindings, Floats, Ints, Load
from simcluster.traffic.drawing import OnMost

Few = npt.NDArray[np.int32]


class Seen(Protocol):
    """``ranks`` that are seen, ascending, and by which of these, and of the links that are, every rank and link is
    told of (-1 for links that are not used): a window, or the cells of one."""

    @property
    def ranks(self) -> Ints: ...
    @property
    def rank(self) -> Ints: ...
    @property
    def link(self) -> Few: ...


_PIECE = 1 << 15  # links at a time, so that they stay in the processor's cache
_FEW = 4096  # whole numbers of flows up to this are their own names


def classes_in_window(communicators: Communicators, window: Seen, odd: Odd, capacity: Floats) -> Classes:
    """``fold.partition`` of ranks that differ by their stage and by what is ``odd``; ``capacity`` is B/s per link."""
    bindings = communicators.shown
    ranks = (communicators.stage_of[window.ranks] * (int(odd.ranks.max()) + 1) + odd.ranks[window.ranks]).tolist()
    of_rank, of_group = coloured(ranks, bindings, odd.by_link, communicators.heeded((), capacity, odd.varying))
    alone = _Apart(bindings.apart, len(capacity))
    links = _links(bindings, of_group[0], window.link, odd.by_link, alone)
    there = bindings.on_links[0]

    def on_links(firsts: Ints) -> Carried:
        own = window.link[firsts]
        begin = np.searchsorted(there, own)
        shown = carried_by(np.where(np.append(there, -1)[begin] == own, begin, -1), bindings)
        whole = [np.concatenate(columns) for columns in zip(shown, alone.on_links(firsts), strict=True)]
        order = np.argsort(whole[0], kind="stable")
        which, user, use, flows = (column[order] for column in whole)
        return which, user, use, flows

    place = np.full(len(window.rank), -1, dtype=np.int64)
    place[window.ranks] = np.arange(len(window.ranks))
    whole = of_rank[0][place[window.rank]], window.ranks[of_rank[1]]
    return classes_of(whole, of_group, links, bindings, on_links, communicators.of_all(of_group[0]))


class _Apart:
    """What groups use that are drawn whole: a ``code`` for each link, equal where as much is carried, 0 for nothing."""

    def __init__(self, apart: Mapping[int, Sequence[Load]], num_links: int) -> None:
        self._parts = [(number, place, use) for number, uses in apart.items() for place, use in enumerate(uses)]
        self.code: Few = np.zeros(num_links, dtype=np.int32)
        for number, (*_, use) in enumerate(self._parts):
            if isinstance(use, OnMost):
                amount = use.load
            else:
                amount = np.zeros(num_links, dtype=np.int32)
                amount[use.link] = 1 + _named(use.flows)
            if number:
                together = self.code * (int(amount.max()) + 1) + amount
                amount = (compact(together)[1] + bool(together.min())).astype(np.int32)  # 0 stays that of nothing
            self.code = amount

    def on_links(self, links: Ints) -> Carried:
        """What of them these links carry."""
        found = []
        for number, place, use in self._parts:
            flows = use.on_links(links)
            which = np.flatnonzero(flows)
            found.append((which, np.full(len(which), number), np.full(len(which), place), flows[which]))
        none = np.zeros(0, dtype=np.int64)
        which, user, places, flows = (
            np.concatenate(each) for each in zip((none, none, none, none + 0.0), *found, strict=True)
        )
        return which, user, places, flows


@dataclass(frozen=True, eq=False)
class _Kinds:
    """Classes of links: ``number`` of every kind of link, -1 for those that nothing uses.

    A link's kind is what its ``counterpart`` is by itself (``sort``, of the last link for those without one), times
    ``amounts``, and its ``code``.  Nobody may ever ask for all of them.
    """

    counterpart: Few
    sort: Few
    amounts: int
    code: Few
    number: Few

    def kinds(self, begin: int, end: int) -> Few:
        """Of some links."""
        found = self.sort.take(self.counterpart[begin:end], mode="wrap")
        found *= np.int32(self.amounts)
        found += self.code[begin:end]
        return found

    @cached_property
    def _all(self) -> Few:
        return self.number.take(self.kinds(0, len(self.code)))

    @cached_property
    def used(self) -> Ints:
        return np.flatnonzero(self._all >= 0)

    @cached_property
    def of_link(self) -> Ints:
        return self._all[self.used].astype(np.int64)


def _links(
    bindings: Bindings, of_group: Ints, counterpart: Few, by_link: Ints, apart: _Apart
) -> tuple[_Kinds, Ints]:  # fmt: skip
    """The classes of links, by what their counterparts carry, and those apart; the first link of each."""
    there = bindings.on_links[0]
    if (counterpart[there] != there).any():
        raise NotAlikeError
    window = np.flatnonzero(counterpart == np.arange(len(counterpart), dtype=counterpart.dtype))
    loads, idle = mixed(by_link[window]), np.ones(len(window), dtype=bool)
    busy = np.searchsorted(window, there)
    loads[busy] ^= carried(of_group, bindings)
    idle[busy] = False
    of_load, one = numbered(loads)
    amounts = int(apart.code.max(initial=0)) + 1
    sort = np.full(len(counterpart) + 1, len(one), dtype=np.int32)  # the last: of links without a counterpart
    sort[window] = of_load
    found = _Kinds(counterpart, sort, amounts, apart.code, np.full((len(one) + 1) * amounts, -1, dtype=np.int32))
    first = _firsts(found, len(counterpart))
    if (first[len(one) * amounts + 1 :] >= 0).any():  # a link without a counterpart that somebody uses
        raise NotAlikeError
    unused = np.zeros((len(one) + 1, amounts), dtype=bool)
    unused[:, 0] = [*idle[one].tolist(), True]
    kinds = np.flatnonzero((first >= 0) & ~unused.ravel())
    kinds = kinds[np.argsort(first[kinds])]
    found.number[kinds] = np.arange(len(kinds))
    return found, first[kinds]


def _firsts(links: _Kinds, size: int) -> Ints:
    """The first link of each kind, -1 for kinds that there are not; most come early."""
    first, unseen = np.full(len(links.number), -1, dtype=np.int64), np.ones(len(links.number), dtype=bool)
    for begin in range(0, size, _PIECE):
        kind = links.kinds(begin, begin + _PIECE)
        new = np.flatnonzero(unseen.take(kind))
        if len(new):
            kind = kind[new]
            first[kind[::-1]] = begin + new[::-1]
            unseen[kind] = False
    return first


def _named(flows: Floats) -> Ints:
    """Numbers of flows as whole numbers, equal for equal ones."""
    whole = flows.astype(np.int64)
    if (whole == flows).all() and whole.max(initial=0) < _FEW:
        return whole
    return np.unique(flows, return_inverse=True)[1]
