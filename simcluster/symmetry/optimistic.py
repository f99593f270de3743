"""Accelerator: optimistic folding, checked after the run, proved for jobs without faults.

Links hold nobody up until a run shows that they do, and only those that it shows.

What a link carries makes ranks differ (``equitable_partition``) where that can ever slow one of them down.  With hashed
routes that is nearly everywhere, though hardly any transfers really meet.  So fold first as if they never did, play
that, and look which transfers were on a crowded link, and when (``engine.contention_check``): what was there is heeded
from then on. Once nothing is crowded but for those whose use of the link is heeded, the run is the one of every rank by
itself, to the bit: max-min fair rates are the same without a link that is not full, and who is heeded sees links alike
in all of a class.  Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

import numpy as np

from simcluster.base.arrays import Bools, Ints
from simcluster.base.link_values import LinkValues
from simcluster.base.multiset_hash import bits
from simcluster.symmetry.equitable_partition import Classes, partition
from simcluster.traffic.fairness import Usage
from simcluster.traffic.incidence import Bindings

Crowd = tuple[Usage, int]
"""What a class of groups uses, and the class of links there that was crowded while it did."""


_WORTH = 1.5  # so many times fewer ranks than with all heeded, or all are: another run may follow this one


class OptimisticFold:
    """Which rows of usage are heeded, from one run of a job to the next."""

    def __init__(self) -> None:
        self._heeded: Bools | None = None
        self._last: tuple[Bindings, Classes, Bools] | None = None
        self._job: tuple[Sequence[Hashable], Bindings, LinkValues, Bools] | None = None

    def classes(
        self, ranks: Sequence[Hashable], bindings: Bindings, capacity: LinkValues, tight: Bools
    ) -> Classes:  # fmt: skip
        """The coarsest partition that heeds what is known to matter; only ``tight`` rows ever do."""
        self._job = ranks, bindings, capacity, tight

        def colours(links: Ints) -> Ints:
            return bits(capacity.of(links)).view(np.int64)

        if self._heeded is None:
            self._heeded = np.zeros(len(tight), dtype=bool)
        while True:
            found = partition(ranks, bindings, colours, self._heeded)
            more = _unlike(bindings, np.array(found.of_communicator), capacity, np.flatnonzero(tight & ~self._heeded))
            if not len(more):
                break
            self._heeded[more] = True
        if self._heeded.any():
            whole = partition(ranks, bindings, colours, tight)
            if _WORTH * len(found.rank_representatives) > len(whole.rank_representatives):
                found, self._heeded = whole, tight
        self._last = bindings, found, tight
        return found

    @property
    def settled(self) -> bool:
        """Was the last run on no trust, all that can ever matter heeded?  Then there is nothing to learn from it."""
        if self._last is None or self._heeded is None:  # never asked: the job was folded otherwise
            return True
        return not (self._last[2] & ~self._heeded).any()

    def learn(self, crowded: Collection[Crowd]) -> bool:
        """Heed these from now on; does that split a class, so that the run must be played again?"""
        if self._last is None or self._heeded is None or self._job is None:  # never asked: the job was folded otherwise
            return False
        bindings, classes, tight = self._last
        of_link = np.full(int(bindings.link.max(initial=-1)) + 1, -1)
        of_link[classes.used] = classes.of_link
        users: dict[Usage, list[int]] = {}
        for number, usages in enumerate(classes.quotient):
            for usage in usages:
                users.setdefault(usage, []).append(number)
        pairs = [(number, link) for usage, link in crowded for number in users[usage]]
        size = 1 + int(of_link.max(initial=0))
        wanted = np.unique(np.array([number * size + link for number, link in pairs], dtype=np.int64))
        here = np.array(classes.of_communicator)[bindings.user] * size + of_link[bindings.link]
        more = tight & ~self._heeded & np.isin(here, wanted)
        self._heeded = self._heeded | more
        return bool(more.any()) and not _same(self.classes(*self._job), classes)


def _same(one: Classes, other: Classes) -> bool:
    """Are two partitions of a job one?"""
    pairs = (one.of_rank, other.of_rank), (one.of_communicator, other.of_communicator), (one.of_link, other.of_link)
    return all(np.array_equal(np.asarray(first), np.asarray(second)) for first, second in pairs)


def _unlike(bindings: Bindings, classes: Ints, capacity: LinkValues, rows: Ints) -> Ints:
    """Of rows that are not heeded those of links on which a class' groups, all at once, are slower than some of them
    is by itself: they would not all go at one rate."""
    if not len(rows):  # one GPU alone crosses no link
        return rows
    user, place, link = bindings.user[rows], bindings.place[rows], bindings.link[rows]
    flows, width = bindings.flows[rows], int(bindings.places.max(initial=1))
    part = classes[user] * width + place
    _, same = np.unique(part * len(capacity) + link, return_inverse=True)
    rates = capacity.of(link)
    together = rates / np.bincount(same, flows)[same]
    alone = np.full((len(bindings), width), np.inf)
    np.minimum.at(alone, (user, place), rates / flows)
    fastest = np.zeros(int(part.max(initial=0)) + 1)
    np.maximum.at(fastest, part, alone[user, place])
    found: Ints = rows[together < fastest[part]]
    return found
