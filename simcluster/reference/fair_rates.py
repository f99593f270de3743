"""Max-min fair rates of flows over shared links, computed from scratch: the definition that all engines match.

Every activity moves at its bound or crosses a bottleneck link: one that is full and on which no flow is faster
(Bertsekas & Gallager, Data Networks, 6.5.2). Written as *levels*: a link's level is the rate at which it limits the
activities that nothing else limits further, and an activity's rate is the lowest level on its route. Exactly one set of
levels is consistent, and iterating over all links until none changes finds it, from the lowest level up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from simcluster.traffic.fairness import Usage


class BandwidthDemand(NamedTuple):
    """Bandwidth demand of a transfer: number of its flows on each link, and maximum rate (B/s) per flow."""

    usage: Usage
    max_rate: float = math.inf


def fair_rates(demands: Sequence[BandwidthDemand], capacity: Mapping[int, float]) -> list[float]:
    """Compute the max-min fair rate per flow (B/s) of every transfer, given each link's capacity (B/s)."""
    users: dict[int, list[int]] = {}
    for number, demand in enumerate(demands):
        for link, _ in demand.usage:
            users.setdefault(link, []).append(number)
    level = dict.fromkeys(users, math.inf)
    flows = [dict(demand.usage) for demand in demands]

    def desired_rate(transfer: int, except_link: int) -> float:
        """Return the rate (B/s) that a transfer would reach if the link ``except_link`` had unlimited capacity."""
        demand = demands[transfer]
        return min([demand.max_rate, *(level[link] for link, _ in demand.usage if link != except_link)])

    changed = True
    while changed:
        changed = False
        for link, numbers in users.items():
            users_of_link = [(desired_rate(number, link), flows[number][link]) for number in numbers]
            new = link_rate_limit(capacity[link], users_of_link)
            changed = changed or new != level[link]
            level[link] = new
    return [desired_rate(number, -1) for number in range(len(demands))]


def link_rate_limit(capacity: float, users: Iterable[tuple[float, float]]) -> float:
    """Return the maximum rate (B/s) that a link allows the transfers on it; infinite if the link limits none.

    ``users`` are the rate that each transfer wants (B/s) and the number of its flows. Those that want less than an
    equal share of the remaining capacity get it, the lowest first, all of one rate at once; the share never falls on
    the way.
    """
    rest = sorted(users)
    left, share = capacity, capacity / math.fsum(flows for _, flows in rest)
    for want, group in groupby(rest.copy(), key=lambda user: user[0]):
        if want >= share:
            return share
        served = list(group)
        left -= math.fsum(flows for _, flows in served) * want
        rest = rest[len(served) :]
        if rest:
            share = max(share, left / math.fsum(flows for _, flows in rest))
    return math.inf
