"""Weighted max-min fair rates over links: pure arithmetic, no clock.

An activity is a set of flows that advance together at one rate (a ring: one flow per hop).  Its *usage* of a link is
how many of its flows cross it.  Rates are max-min fair per flow: every activity crosses a saturated link on which no
flow is faster, or moves at its bound.  Source: Bertsekas & Gallager, Data Networks, 6.5.2; MODELLING.md C.2.

The solution is written as *levels*, the rate at which a link holds back those whom nothing else holds back further
(infinite for one that holds back nobody); an activity's rate is the lowest level on its way.  What an activity *wants*
of a link is the lowest level elsewhere on its way.  A link's level is a function of what its users want: fill from the
lowest on, subtract those who want less than an equal share of what is left, all of one rate at once; the share never
falls on the way, rounded or not.  So, by induction from the lowest level up, one set of levels fits together and only
one, to the bit: of two that differ take the lowest rate at which they do; up to there both fill its link alike.  It
does not matter where the search begins, in which order it visits links, or how many activities stand for equal flows.
(Links that tell each other only what has changed: Mozo et al., B-Neck, IEEE NCA 2011.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import Generic, TypeVar

Usage = tuple[tuple[int, float], ...]  # (link, flows of this activity that cross it), links in ascending order

_MANY = 1000
"""Links that change at once from which on progressive filling makes the first guess."""

_PATIENCE = 20_000
"""Visits of links after which progressive filling is the better beginning."""


def solo_rate(usage: Usage, capacity: Sequence[float]) -> float:
    """Rate per flow in B/s of an activity that has its links to itself; infinite if it crosses no link."""
    return min((capacity[link] / flows for link, flows in usage), default=math.inf)


class Sharer:
    """An activity as its links see it; ``rate`` is B/s per flow, ``bound`` the most it can use."""

    __slots__ = ("bound", "free", "rate", "usage")

    free: bool
    """Does it hold its links without being among their users?"""

    def __init__(self, usage: Usage, bound: float = math.inf) -> None:
        self.free = False
        self.usage = usage
        self.bound = bound
        self.rate = -1.0  # not yet known


_USERS = Sharer(())
"""Stands for the users of a link."""

AnySharer = TypeVar("AnySharer", bound=Sharer)


class Shares(Generic[AnySharer]):
    """Who is on which link, at what level; solved again where something changed and as far as that reaches."""

    def __init__(self, capacity: Iterable[float]) -> None:
        self.capacity = list(capacity)
        self._users: list[dict[AnySharer, float]] = [{} for _ in self.capacity]
        self._holder: list[AnySharer | Sharer | None] = [None] * len(self.capacity)  # who is there: one, or its users
        self._level = [math.inf] * len(self.capacity)
        self._due: dict[int, None] = {}
        self._before: dict[AnySharer, float] = {}  # rates at the last solution, of those that changed since
        self.solves = 0  # how often there was something to do

    def join(self, sharer: AnySharer) -> bool:
        """Put an activity on its links.  True: it has them to itself and its rate is final; else ``solve`` sets it."""
        rate, alone = sharer.bound, True
        level = self._level
        for link, flows in sharer.usage:
            if self._holder[link] is not _USERS:
                self._open(link)
            users = self._users[link]
            if users:
                alone = False
                self._due[link] = None
            else:
                self._holder[link] = _USERS
                level[link] = self.capacity[link] / flows
            users[sharer] = flows
            if level[link] < rate:
                rate = level[link]
        if not alone:
            self._before[sharer] = sharer.rate
        sharer.rate = rate
        return alone

    def join_free(self, sharer: AnySharer) -> bool:
        """Put an activity on its links if nobody is on any of them; its rate is final then.

        It is no user of them before somebody else comes: 7 % of the time of 128 ranks, each played by itself.
        """
        holder, capacity, usage = self._holder, self.capacity, sharer.usage
        for link, _ in usage:
            if holder[link] is not None:
                return False
        rate = sharer.bound
        for link, flows in usage:
            holder[link] = sharer
            level = capacity[link] / flows
            if level < rate:
                rate = level
        sharer.rate = rate
        sharer.free = True
        return True

    def _open(self, link: int) -> None:
        """Whoever holds the link by itself is among the users of its links from now on."""
        holder = self._holder[link]
        if holder is not None and holder.free:
            holder.free = False
            for each, flows in holder.usage:
                self._holder[each] = _USERS
                self._users[each][holder] = flows  # type: ignore[index]
                self._level[each] = self.capacity[each] / flows

    def sole_users(self, usage: Usage) -> list[AnySharer]:
        """Those who have one of these links to themselves."""
        for link, _ in usage:
            self._open(link)
        found = [self._users[link] for link, _ in usage]
        return list(dict.fromkeys(sharer for users in found if len(users) == 1 for sharer in users))

    def leave(self, sharer: AnySharer) -> bool:
        """Take an activity off its links.  True: others were on one of them, and ``solve`` has something to do."""
        if sharer.free:
            for link, _ in sharer.usage:
                self._holder[link] = None
            return False
        shared = False
        for link, _ in sharer.usage:
            users = self._users[link]
            del users[sharer]
            if users:
                self._due[link] = None
                shared = True
            else:
                self._holder[link] = None
        self._before.pop(sharer, None)
        return shared

    def set_capacity(self, link: int, capacity: float) -> bool:
        """Change a link's capacity (B/s).  True: somebody is on it, and ``solve`` has something to do."""
        self._open(link)
        self.capacity[link] = capacity
        if self._users[link]:
            self._due[link] = None
        return bool(self._users[link])

    def solve(self) -> list[AnySharer]:
        """Bring all levels in line; the activities whose rate is another than at the last solution."""
        due = [link for link in self._due if self._users[link]]
        self._due = {}
        if due:
            self.solves += 1
            if len(due) > _MANY or not self._search(due, _PATIENCE):
                self._search(self._filled(), math.inf)
        before, self._before = self._before, {}
        return [sharer for sharer, rate in before.items() if sharer.rate != rate]

    def _search(self, due: Iterable[int], patience: float) -> bool:
        """Visit links that may be out of line, and those that this puts out of line; False when ``patience`` is over.

        Lowest levels first: what is found there holds, whatever comes out further up.
        """
        users, level = self._users, self._level
        waiting = dict.fromkeys(due)
        queue = [(level[link], link) for link in waiting]
        heapify(queue)
        while queue:
            if not patience:
                return False
            patience -= 1
            _, link = heappop(queue)
            del waiting[link]
            old, new = level[link], self._level_of(link)
            if new == old:
                continue
            level[link] = new
            for sharer in users[link]:
                rate = sharer.rate
                if rate < old and rate <= new:  # held back elsewhere, before and after
                    continue
                if self._update(sharer):
                    for other, _ in sharer.usage:
                        if other != link and other not in waiting and len(users[other]) > 1:
                            waiting[other] = None
                            heappush(queue, (level[other], other))
        return True

    def _update(self, sharer: AnySharer) -> bool:
        """Take the activity's rate from the levels; whether that changes it."""
        level, rate = self._level, sharer.bound
        for link, _ in sharer.usage:
            if level[link] < rate:
                rate = level[link]
        return self._set_rate(sharer, rate)

    def _set_rate(self, sharer: AnySharer, rate: float) -> bool:
        """Note the activity's rate; whether that changes it."""
        if rate == sharer.rate:
            return False
        self._before.setdefault(sharer, sharer.rate)
        sharer.rate = rate
        return True

    def _level_of(self, link: int) -> float:
        """The level that fits what the link's users want."""
        users, level = self._users[link], self._level
        if len(users) == 1:
            (alone,) = users.values()
            return self.capacity[link] / alone
        old = level[link]
        wants = []
        for sharer in users:
            want = sharer.rate
            if want >= old:  # this link holds it back: what would others allow?
                want = sharer.bound
                for other, _ in sharer.usage:
                    if other != link and level[other] < want:
                        want = level[other]
            wants.append(want)
        return _fill(self.capacity[link], wants, users.values(), math.fsum(users.values()))

    def _filled(self) -> list[int]:
        """Levels and rates by progressive filling, for all links; those where a last bit may be another.

        From the lowest equal share up: who is on such a link goes no faster, and leaves more of its others to the rest.
        """
        users = self._users
        left = {link: self.capacity[link] for link, own in enumerate(users) if own}
        load = {link: math.fsum(users[link].values()) for link in left}
        share = {link: left[link] / load[link] for link in left}
        count = {link: len(users[link]) for link in left}
        going = dict.fromkeys(chain.from_iterable(users[link] for link in left))
        bounded = [sharer for sharer in going if sharer.bound < math.inf]
        queue = [(rate, link) for link, rate in share.items()]
        queue += [(sharer.bound, ~number) for number, sharer in enumerate(bounded)]
        heapify(queue)
        for link in left:
            self._level[link] = share[link] if count[link] == 1 else math.inf
        while queue:
            rate, link = heappop(queue)
            if link >= 0:
                if rate != share.get(link):  # it has become more since
                    continue
                self._level[link] = rate
            seen: dict[int, None] = {}
            for sharer in [each for each in (users[link] if link >= 0 else [bounded[~link]]) if each in going]:
                del going[sharer]
                self._set_rate(sharer, rate)
                for other, flows in sharer.usage:
                    left[other] -= flows * rate
                    load[other] -= flows
                    count[other] -= 1
                    seen[other] = None
            for other in seen:
                before, share[other] = share[other], math.inf
                if count[other] and load[other] > 0:
                    share[other] = max(rate, left[other] / load[other])
                    if share[other] != before:
                        heappush(queue, (share[other], other))
        return [link for link in left if len(users[link]) > 1]


def _fill(capacity: float, wants: Iterable[float], flows: Iterable[float], total: float) -> float:
    """The level at which activities of so many flows share a link when some want less; infinite when all do.

    Sums are exact, so it does not matter how activities are split.
    """
    rest = sorted(zip(wants, flows, strict=True))
    left, share = capacity, capacity / total
    while rest:
        want = rest[0][0]
        if want >= share:
            return share
        done = sum(1 for other, _ in rest if other == want)
        left -= math.fsum([flow for _, flow in rest[:done]]) * want
        rest = rest[done:]
        if rest:
            share = max(share, left / math.fsum([flow for _, flow in rest]))
    return math.inf


_NO_BOUNDS: Mapping[int, float] = {}


def fair_rates(
    usages: Mapping[int, Usage], capacity: Sequence[float], bounds: Mapping[int, float] = _NO_BOUNDS
) -> dict[int, float]:
    """Max-min fair rate per flow (B/s) of every activity, keyed as given; ``bounds`` caps the rate of some.

    No bit depends on the order of the activities, and an activity with usage 2 gives the same bits as two activities
    with usage 1.
    """
    shares: Shares[Sharer] = Shares(capacity)
    sharers = {key: Sharer(usage, bounds.get(key, math.inf)) for key, usage in usages.items()}
    for sharer in sharers.values():
        shares.join(sharer)
    shares.solve()
    return {key: sharer.rate for key, sharer in sharers.items()}
