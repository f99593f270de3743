"""Water filling: levels of many links at once, where ``fairness`` begins when much has changed.

Progressive filling, with all local bottlenecks frozen in each round: a link whose equal share of what is left is the
lowest among all links of all activities that cross it need not wait for lower ones elsewhere.  So a link may be drained
in another order than from the lowest rate up, which costs a last bit here and there.  A few passes over the links bring
these in line, and what is left of them the exact search does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from simcluster.base.arrays import Bools, Floats

Places = npt.NDArray[np.int64]

_GROUPS = 64
"""Different rates on one link that are checked here; links with more are few."""

_PASSES = 12
"""Corrections of last bits made here: they move on by one link each time, and become few."""

_UNIT = 2.0**-40
"""Flows that are multiples of it (see topology.routing) add up exactly, up to ``_MOST`` on a link."""
_MOST = 2.0**12


class Filling:
    """Activities on links: ``sizes`` users of each link, named in ``users`` with their ``flows``, link after link."""

    def __init__(
        self,
        capacity: Sequence[float],
        bound: Sequence[float],
        sizes: Sequence[int],
        users: Iterable[int],
        flows: Iterable[float],
    ) -> None:
        total = sum(sizes)
        self._capacity = np.array(capacity, dtype=np.float64)
        self._bound = np.array(bound, dtype=np.float64)
        self._sizes = np.array(sizes, dtype=np.int64)
        self._link = np.repeat(np.arange(len(capacity)), self._sizes)
        self._user = np.fromiter(users, np.int64, total)
        self._flows = np.fromiter(flows, np.float64, total)
        self._load = np.bincount(self._link, self._flows, len(capacity))
        self._alone = self._sizes == 1
        self._unsaid = np.zeros(len(capacity), np.bool_)

    def solution(self) -> tuple[list[float], list[float], list[int]]:
        """A level per link, a rate per activity that is the lowest on its way, and the links that these do not fit."""
        with np.errstate(divide="ignore", invalid="ignore"):
            level = self._filled()
            rate = self._rates(level)
            due = ~self._alone
            for _ in range(_PASSES):
                fitting = self._fitting(level, rate, due)
                due = fitting != level
                if not due.any():
                    break
                before, level = rate, fitting
                rate = self._rates(level)
                moved = (rate != before)[self._user]
                moved &= np.minimum(rate, before)[self._user] < level[self._link]  # as others allow: that counts here
                due[self._link[moved]] = True
                due &= ~self._alone
        due |= self._unsaid
        if not self._exact():
            due = ~self._alone
        return level.tolist(), rate.tolist(), np.flatnonzero(due).tolist()

    def _exact(self) -> bool:
        for unit, most in ((1.0, 2.0**52), (_UNIT, _MOST)):
            parts = self._flows / unit
            if (parts == np.floor(parts)).all() and self._load.max(initial=0.0) <= most:
                return True
        return False

    def _rates(self, level: Floats) -> Floats:
        rate = self._bound.copy()
        np.minimum.at(rate, self._user, level[self._link])
        return rate

    def _filled(self) -> Floats:
        """Progressive filling; infinite for a link that holds back nobody, but for one with a single user."""
        link, user, flows = self._link, self._user, self._flows
        left, load, count = self._capacity.copy(), self._load.copy(), len(self._capacity)
        share = left / load
        level = np.where(self._alone, share, np.inf)
        while len(link):
            offered = share[link]
            want = self._bound.copy()
            np.minimum.at(want, user, offered)
            wanted = want[user]
            waits = np.zeros(count, np.bool_)  # links with a user whom another link holds back further
            waits[link[wanted < offered]] = True
            full = ~waits[link]
            level[link[full]] = offered[full]
            frozen = want == self._bound
            frozen[user[full]] = True
            done = frozen[user]
            gone = link[done]
            left -= np.bincount(gone, flows[done] * wanted[done], count)
            load -= np.bincount(gone, flows[done], count)
            share = np.where(load > 0, np.fmax(share, left / load), share)
            link, user, flows = link[~done], user[~done], flows[~done]
        return level

    def _fitting(self, level: Floats, rate: Floats, due: Bools) -> Floats:
        """The level of each link that is due that fits the rates of those below its present one: see ``fairness``.

        Infinite where all are below.  Where there are too many different rates to say, it is left as it is.
        """
        below = np.flatnonzero((rate[self._user] < level[self._link]) & due[self._link])
        _, rank = np.unique(rate, return_inverse=True)
        place = self._link[below] * len(rate) + rank[self._user[below]]
        order = np.argsort(place, kind="stable")
        place, members = place[order], self._user[below[order]]
        first = np.flatnonzero(np.diff(place, prepend=-1))
        flows = np.add.reduceat(self._flows[below[order]], first) if len(first) else np.zeros(0)
        sizes = np.diff(first, append=len(place))
        link, rates = place[first] // len(rate), rate[members[first]]
        groups = np.bincount(link, minlength=len(level))
        turn = np.arange(len(link)) - np.repeat(np.cumsum(groups) - groups, groups)  # 0 for a link's lowest rate
        left, load, users = self._capacity.copy(), self._load.copy(), self._sizes.copy()
        share = left / load
        going = groups <= _GROUPS
        by_turn = np.argsort(turn, kind="stable")
        ends = np.cumsum(np.bincount(turn, minlength=1))[:_GROUPS].tolist()
        for begin, end in zip([0, *ends], ends, strict=False):
            now = by_turn[begin:end]
            going[link[now]] &= rates[now] < share[link[now]]
            now = now[going[link[now]]]
            at = link[now]
            left[at] -= flows[now] * rates[now]
            load[at] -= flows[now]
            users[at] -= sizes[now]
            some = users[at] > 0
            share[at] = np.where(some, np.maximum(share[at], left[at] / load[at]), np.inf)
        crowded = groups > _GROUPS
        self._unsaid |= crowded
        return np.where(due & ~crowded, share, level)
