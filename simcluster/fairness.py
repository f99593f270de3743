"""Weighted max-min fair rates over links: pure arithmetic, no clock.  Imports nothing of simcluster.

An activity is a set of flows that advance together at one rate (a ring: one flow per hop).  Its *usage* of a link is
how many of its flows cross it.  Rates are max-min fair per flow (progressive filling): raise all rates together; a link
whose capacity is used up freezes the activities that cross it; go on with the rest.  Source: Bertsekas & Gallager, Data
Networks, 6.5.2; the certificate that a solution is right is that every activity crosses a saturated link on which no
flow is faster (modelling.md C.2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Usage = tuple[tuple[int, float], ...]  # (link, flows of this activity that cross it), links in ascending order


def solo_rate(usage: Usage, capacity: Sequence[float]) -> float:
    """Rate per flow in B/s of an activity that has its links to itself; infinite if it crosses no link."""
    return min((capacity[link] / flows for link, flows in usage), default=math.inf)


_NO_BOUNDS: Mapping[int, float] = {}


def fair_rates(
    usages: Mapping[int, Usage], capacity: Sequence[float], bounds: Mapping[int, float] = _NO_BOUNDS
) -> dict[int, float]:
    """Max-min fair rate per flow (B/s) of every activity, keyed as given; ``bounds`` caps the rate of some.

    Flows of one round are summed before they touch a capacity, so the result does not depend on the order of the
    activities, and an activity with usage 2 gives the same bits as two activities with usage 1.
    """
    load: dict[int, float] = {}
    users: dict[int, list[int]] = {}
    for key, usage in usages.items():
        for link, flows in usage:
            load[link] = load.get(link, 0.0) + flows
            users.setdefault(link, []).append(key)
    left = {link: capacity[link] for link in load}
    waiting = {link: len(keys) for link, keys in users.items()}
    rates: dict[int, float] = {key: bounds.get(key, math.inf) for key, usage in usages.items() if not usage}
    while len(rates) < len(usages):
        level = min(left[link] / load[link] for link in load)
        bound = min((cap for key, cap in bounds.items() if key not in rates), default=math.inf)
        if bound < level:
            level = bound
            frozen = {key: None for key, cap in bounds.items() if cap == bound and key not in rates}
        else:
            saturated = [link for link in load if left[link] / load[link] == level]
            frozen = {key: None for link in saturated for key in users[link] if key not in rates}
        freed: dict[int, float] = {}
        for key in frozen:
            rates[key] = level
            for link, flows in usages[key]:
                freed[link] = freed.get(link, 0.0) + flows
                waiting[link] -= 1
        for link, flows in freed.items():
            load[link] -= flows
            left[link] = max(0.0, left[link] - flows * level)
            if not waiting[link]:
                del load[link], left[link]
    return rates
