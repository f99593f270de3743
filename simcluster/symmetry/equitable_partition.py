"""Accelerator: the equitable partition of ranks, groups and links, proved for every job that is not played in steps.

One representative plays for all ranks of a class, which behave alike.

The coarsest equitable partition of ranks, groups and links by colour refinement: start from what makes them differ by
themselves (stage, speed, capacity), then split classes whose members see different classes around them, until nothing
splits.  Ranks of one class then have identical timelines (MODELLING.md I.1).  Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from simcluster.base.arrays import Hashes, Int32s, Ints
from simcluster.base.multiset_hash import bits, compact, count, mixed, numbered, ordered, sums
from simcluster.traffic.incidence import Bindings

Colours: TypeAlias = Callable[[Ints], Ints]
"""The initial colours of some links."""
Numbered = tuple[Ints, Ints]
"""The class of each of many, and the place of the first of each class."""


def flow_sums(users: Ints, bindings: Bindings, times: Int32s | None = None) -> Hashes:
    """Return a hash of what every used link carries, for these ``users`` of rows that count so many ``times``."""
    _, _, order, starts = bindings.on_links
    uses = users * int(bindings.places.max(initial=1)) + bindings.place
    flows = mixed(mixed(uses, 3) ^ bits(bindings.flows), 5)
    return sums((flows if times is None else flows * times.astype(np.uint64))[order], starts)


def refined(ranks: Ints, bindings: Bindings, of_links: Colours) -> tuple[Numbered, Numbered]:
    """Return the classes of ranks and of communicators, once nothing splits any more.

    ``ranks`` and ``of_links`` are initial colours: whatever makes a rank or a link different by itself.
    """
    rows, times = _distinct_rows(bindings, of_links)
    used, link_of = compact(bindings.link[rows])
    user = bindings.user[rows]
    per_use = np.searchsorted(user, np.arange(len(bindings) + 1))
    how = mixed(mixed(bindings.place[rows], 11) ^ mixed(bits(bindings.flows[rows]), 13))
    by_link = ordered(link_of)
    per_link = np.searchsorted(link_of[by_link], np.arange(len(used) + 1))
    member = np.repeat(np.arange(len(bindings)), np.diff(bindings.member))
    place = np.arange(len(member)) - bindings.member[member]
    role = mixed(np.where(bindings.ordered[member], place, 0), 17)
    by_rank = ordered(bindings.rank)
    per_rank = np.searchsorted(bindings.rank[by_rank], np.arange(len(ranks) + 1))
    member_by_rank = member[by_rank]
    seen_of, how_by_link, user_by_link = bindings.rank, how[by_link], user[by_link]
    many = np.uint64(1) if bindings.many is None else bindings.many.astype(np.uint64)

    def finer(ranks: Hashes, groups: Hashes, links: Hashes, salt: int) -> tuple[Hashes, Hashes, Hashes]:
        """Each colour with those around it."""
        seen = sums(mixed(ranks[seen_of] ^ role, salt + 29) * many, bindings.member)
        loads = sums(mixed(links[link_of] ^ how, salt + 31) * times, per_use)
        groups = mixed(mixed(groups ^ mixed(seen, salt + 37)) ^ mixed(loads, salt + 41))
        links = mixed(links ^ mixed(sums(mixed(groups[user_by_link] ^ how_by_link, salt + 43), per_link), salt + 47))
        around = sums(mixed(groups[member_by_rank], salt + 53), per_rank)
        return mixed(ranks ^ mixed(around, salt + 59)), groups, links

    colours = initial = mixed(ranks), mixed(bindings.colour, 23), mixed(of_links(used), 19)
    before, salt = 0, 0
    while True:
        colours = finer(*colours, salt)
        now = sum(map(count, colours))
        if now == before:
            # Two of k colours get one number with a probability of k^2 / 2^65 a round: 3e-8 for 10^6.  So once nothing
            # splits, a round of other numbers must find nothing either, from the first colours and the last: a wrong
            # partition that passes is one in 10^15 of such runs.
            both = zip(initial, colours, strict=True)
            labels = [mixed(first, salt + 67) ^ mixed(numbered(last)[0], salt + 61) for first, last in both]
            colours = finer(labels[0], labels[1], labels[2], salt + 100)
            if sum(map(count, colours)) == now:
                return numbered(colours[0]), numbered(colours[1])
            salt += 100
        before = now


def _distinct_rows(bindings: Bindings, of_links: Colours) -> tuple[Ints, Hashes]:
    """Return the rows of one link for each set of links with equal flows of the same users, and how many each
    represents.

    The links of a path that nothing else uses are such a set.  With 16 slow GPUs, 167,000 of 2.4 million rows remain.
    """
    used, link_of, _, _ = bindings.on_links
    load = flow_sums(bindings.user, bindings, bindings.times)
    alike, first = numbered(mixed(load, 17) ^ mixed(of_links(used), 19))
    one = np.zeros(len(used), dtype=bool)
    one[first] = True
    rows = np.flatnonzero(one[link_of])
    times = np.bincount(alike)[alike[link_of[rows]]]
    return rows, (times if bindings.times is None else times * bindings.times[rows]).astype(np.uint64)
