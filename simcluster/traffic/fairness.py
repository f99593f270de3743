"""Link usage of a transfer, and its rate if it shares no link with other traffic.

A transfer is a set of flows that advance together at one rate (a ring: one flow per hop). Its *usage* of a link is how
many of its flows cross it. Rates of transfers that share links are max-min fair per flow: ``reference.fair_rates``
defines them, ``engine.max_min`` computes the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Usage = tuple[tuple[int, float], ...]  # (link, flows of this activity that cross it), links in ascending order


def solo_rate(usage: Usage, capacity: Sequence[float]) -> float:
    """Return the rate per flow (B/s) of a transfer that shares no link; infinite if it uses no link."""
    return min((capacity[link] / flows for link, flows in usage), default=math.inf)
