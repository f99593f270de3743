"""Classes of equal ranks, groups and links of a whole job, from what its window shows.

The same that ``equitable_partition`` finds in the whole, number by number.  Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simcluster.base.arrays import Floats, Int32s, Ints
from simcluster.base.link_columns import PerLink
from simcluster.base.link_values import LinkValues
from simcluster.base.multiset_hash import compact, mixed, numbered
from simcluster.symmetry.communicators import Communicators
from simcluster.symmetry.equitable_partition import (
    Carried,
    Classes,
    Colours,
    carried,
    carried_by,
    classes_of,
    coloured,
)
from simcluster.symmetry.orbits import Irregularities, Orbits
from simcluster.symmetry.quotient import NotAlikeError, Quotient
from simcluster.traffic.incidence import Bindings, Load
from simcluster.traffic.link_usage import OnMost

_FEW = 4096  # whole numbers of flows up to this are their own names


def classes_in_window(
    communicators: Communicators, window: Quotient | Orbits, odd: Irregularities, capacity: LinkValues
) -> Classes:
    """As ``folding.classes_in_whole``, seen through a window or the cells of one; ``capacity`` is B/s per link."""
    bindings, become = communicators.shown, window.become
    ranks = (communicators.stage_of[window.ranks] * (int(odd.ranks.max()) + 1) + odd.ranks[window.ranks]).tolist()
    of_rank, of_group = coloured(ranks, bindings, odd.colours, None)
    alone = _Apart(bindings.apart, len(capacity))
    links = _links(bindings, of_group[0], become, odd.colours, alone.code)
    there = bindings.on_links[0]

    def on_links(firsts: Ints) -> Carried:
        own = become.of(firsts)
        begin = np.searchsorted(there, own)
        shown = carried_by(np.where(np.append(there, -1)[begin] == own, begin, -1), bindings)
        whole = [np.concatenate(columns) for columns in zip(shown, alone.on_links(firsts), strict=True)]
        order = np.argsort(whole[0], kind="stable")
        which, user, use, flows = (column[order] for column in whole)
        return which, user, use, flows

    whole = of_rank[0][window.place[window.rank]], window.ranks[of_rank[1]]
    return classes_of(whole, of_group, links, bindings, on_links, communicators.of_all(of_group[0]))


class _Apart:
    """What groups use that are drawn whole: a ``code`` for each link, equal where as much is carried, 0 for nothing."""

    def __init__(self, apart: Mapping[int, Sequence[Load]], num_links: int) -> None:
        self._parts = [(number, place, use) for number, uses in apart.items() for place, use in enumerate(uses)]
        self.code: PerLink | None = None
        for *_, use in self._parts:
            if isinstance(use, OnMost):
                amount = use.load.code
            else:
                one_by_one = np.zeros(num_links, dtype=np.int32)
                one_by_one[use.link] = 1 + _named(use.flows)
                amount = PerLink.one_by_one(one_by_one)
            if self.code is not None:
                together = self.code.all * (amount.most + 1) + amount.all
                amount = PerLink.one_by_one(
                    (compact(together)[1] + bool(together.min())).astype(np.int32)  # 0 stays that of nothing
                )
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
    """Classes of links: ``number`` of every ``kind`` of link, -1 for those that nothing uses.

    Nobody may ever ask for all of them.
    """

    kind: PerLink
    number: Int32s

    @cached_property
    def _all(self) -> Int32s:
        return self.number.take(self.kind.all)

    @cached_property
    def used(self) -> Ints:
        return np.flatnonzero(self._all >= 0)

    @cached_property
    def of_link(self) -> Ints:
        return self._all[self.used].astype(np.int64)


def _links(
    bindings: Bindings, of_group: Ints, become: PerLink, colours: Colours, code: PerLink | None
) -> tuple[_Kinds, Ints]:
    """The classes of links, by what those carry that they ``become``, and those apart (``code``); the first link of
    each."""
    there = bindings.on_links[0]
    if (become.of(there) != there).any():
        raise NotAlikeError
    window = become.different
    window = window[become.of(window) == window]
    loads, idle = mixed(colours(window)), np.ones(len(window), dtype=bool)
    busy = np.searchsorted(window, there)
    loads[busy] ^= carried(of_group, bindings)
    idle[busy] = False
    of_load, one = numbered(loads)
    sort = np.append(of_load, len(one)).astype(np.int32)  # the last: of links that are not used
    kind, amounts = become.among(window).each(lambda place: sort.take(place)), 1
    if code is not None:
        amounts = code.most + 1
        kind = kind.beside(code, lambda sort, code: sort * np.int32(amounts) + code)
    first = kind.firsts((len(one) + 1) * amounts)
    if (first[len(one) * amounts + 1 :] >= 0).any():  # a link without a counterpart that somebody uses
        raise NotAlikeError
    unused = np.zeros((len(one) + 1, amounts), dtype=bool)
    unused[:, 0] = [*idle[one].tolist(), True]
    kinds = np.flatnonzero((first >= 0) & ~unused.ravel())
    kinds = kinds[np.argsort(first[kinds])]
    number = np.full(len(first), -1, dtype=np.int32)
    number[kinds] = np.arange(len(kinds))
    return _Kinds(kind, number), first[kinds]


def _named(flows: Floats) -> Ints:
    """Numbers of flows as whole numbers, equal for equal ones."""
    whole = flows.astype(np.int64)
    if (whole == flows).all() and whole.max(initial=0) < _FEW:
        return whole
    return np.unique(flows, return_inverse=True)[1]
