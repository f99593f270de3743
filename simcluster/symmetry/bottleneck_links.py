"""Links that may become a bottleneck link: no others decide which ranks behave alike.

A link never decides anything if another one carries all that it carries and is at least as full of each: when the first
is full the second is, too.  A cable behind a NIC is such a link, or an uplink with the traffic of one of its NICs.  So
max-min fair rates are the same without it, whatever is under way.  Nor does a link that all its users together cannot
fill, each at the most that its own links leave it: an uplink over which rings of a fraction of its leaf's machines go.
Nor does it matter what a group that is never under way beside others (``barriers``) does to links.  Pure.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from simcluster.base.arrays import Bools, Ints
from simcluster.base.link_values import LinkValues
from simcluster.base.multiset_hash import bits, compact, mixed, ordered, sums
from simcluster.traffic.incidence import Bindings

_ROOM = 1 - 1e-6  # of a link's capacity: what fills it to the last bit may decide a rate
_MANY = 64  # a user with more links is not gone through link by link


def tight_rows(bindings: Bindings, capacity: LinkValues, varying: Collection[int], alone: Bools) -> Bools:
    """Which rows of usage are of links that may decide a rate.

    ``varying`` links change their capacity on the way; communicators that are ``alone`` never meet others.
    """
    rows = np.flatnonzero(~alone[bindings.user])
    table = _Table(bindings, rows, capacity)
    fixed = np.ones(len(table.links), dtype=bool)
    if varying:
        fixed[:] = [link not in varying for link in table.links.tolist()]
    filled = ~_never_full(table, fixed)
    kept = _narrowest(table.of(filled), fixed) & filled
    kept &= ~_dominated(table.of(kept), fixed)
    found = np.zeros(len(bindings.link), dtype=bool)
    found[rows] = kept[table.link]
    return found


class _Table:
    """Rows of usage: ``user``, ``link`` (by its place in ``links``), and how full a rate of 1 makes it: ``weight``."""

    def __init__(self, bindings: Bindings, rows: Ints, capacity: LinkValues) -> None:
        width = int(bindings.places.max(initial=1))
        self.user = bindings.user[rows] * width + bindings.place[rows]
        self.links, self.link = compact(bindings.link[rows])
        self.flows = bindings.flows[rows]
        self.times = np.ones(len(rows), dtype=np.int64) if bindings.times is None else bindings.times[rows]
        self.capacity = capacity.of(self.links)
        self.weight = self.flows / self.capacity[self.link]

    def of(self, kept: Bools) -> _Table:
        """The rows of some links."""
        other: _Table = object.__new__(_Table)
        some = kept[self.link]
        other.user, other.link = self.user[some], self.link[some]
        other.flows, other.times, other.weight = self.flows[some], self.times[some], self.weight[some]
        other.links, other.capacity = self.links, self.capacity
        return other

    @property
    def users(self) -> Ints:
        """How many users every link has."""
        return np.bincount(self.link, minlength=len(self.links))


def _never_full(table: _Table, fixed: Bools) -> Bools:
    """Links with room to spare for all their users at once, each at the rate that its narrowest link allows it."""
    constant = fixed[table.link]
    narrowest = np.zeros(int(table.user.max(initial=0)) + 1)
    np.maximum.at(narrowest, table.user[constant], table.weight[constant])
    part = np.full(len(table.link), np.inf)
    np.divide(table.weight, narrowest[table.user], out=part, where=narrowest[table.user] > 0)
    return fixed & (np.bincount(table.link, part * table.times, len(table.links)) < _ROOM)


def _narrowest(table: _Table, fixed: Bools) -> Bools:
    """Of links with the same users in the same numbers the narrowest, of equally narrow ones the first."""
    order = ordered(table.link)
    starts = np.searchsorted(table.link[order], np.arange(len(table.links) + 1))
    load = sums(mixed(mixed(table.user, 3) ^ mixed(bits(table.flows), 5), 7)[order], starts)
    load = np.where(fixed, load, mixed(load ^ mixed(np.arange(len(load)), 11)))
    by_load = np.lexsort((np.arange(len(load)), table.capacity, load))
    kept = np.zeros(len(load), dtype=bool)
    kept[by_load[np.diff(load[by_load], prepend=~load[by_load][:1]) != 0]] = True
    return kept


def _dominated(table: _Table, fixed: Bools) -> Bools:
    """Links that another one is always as full as."""
    size = len(table.links)
    found = np.zeros(size, dtype=bool)
    if not len(table.user):
        return found
    users = table.users
    order = np.lexsort((table.link, table.user))
    user, link, weight = table.user[order], table.link[order], table.weight[order]
    degree = np.bincount(user)
    first = np.searchsorted(user, np.arange(len(degree) + 1))
    # links of a single user: all but its fullest, of equally full ones the first
    lone = (users == 1) & fixed
    constant = fixed[link]
    fullest = np.full(len(degree), -1.0)
    np.maximum.at(fullest, user[constant], weight[constant])
    best = np.full(len(degree), size)
    top = constant & (weight == fullest[user])
    np.minimum.at(best, user[top], link[top])
    several = users[np.minimum(best, size - 1)] > 1
    beaten = lone[link] & ((weight < fullest[user]) | (best[user] != link) | several[user] & (best[user] != link))
    found[link[beaten]] = True
    # others: look at all links of the user that has the fewest
    by_link = np.lexsort((degree[table.user], table.link))
    opening = by_link[np.diff(table.link[by_link], prepend=-1) != 0]
    links = np.bincount(table.user, table.times)
    few = (users[table.link[opening]] > 1) & (links[table.user[opening]] <= _MANY) & fixed[table.link[opening]]
    opening = opening[few]
    counts = degree[table.user[opening]]
    pair = np.repeat(np.arange(len(opening)), counts)
    other = link[np.repeat(first[table.user[opening]], counts) + _within(counts)]
    this = table.link[opening][pair]
    good = (other != this) & (users[other] >= users[this]) & fixed[other]
    this, other = this[good], other[good]
    row_first = np.searchsorted(table.link[by_link], np.arange(size + 1))
    counts = users[this]
    pair = np.repeat(np.arange(len(this)), counts)
    row = by_link[np.repeat(row_first[this], counts) + _within(counts)]
    key = user * size + link
    wanted = table.user[row] * size + other[pair]
    place = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
    there = (key[place] == wanted) & (weight[place] >= table.weight[row])
    equal = there & (weight[place] == table.weight[row])
    always = np.bincount(pair, there, len(this)) == counts
    mutual = (np.bincount(pair, equal, len(this)) == counts) & (users[other] == users[this])
    found[this[always & (~mutual | (other < this))]] = True
    return found


def _within(counts: Ints) -> Ints:
    """0, 1, ... for every run of so many."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
