"""Link usage of activities, and the rate of an activity that has its links to itself.

An activity is a set of flows that advance together at one rate (a ring: one flow per hop). Its *usage* of a link is how
many of its flows cross it. Rates of activities that share links are max-min fair per flow: ``reference.fair`` defines
them, ``engine.max_min`` computes the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Usage = tuple[tuple[int, float], ...]  # (link, flows of this activity that cross it), links in ascending order


def solo_rate(usage: Usage, capacity: Sequence[float]) -> float:
    """Return the rate per flow (B/s) of an activity that has its links to itself; infinite if it crosses no link."""
    return min((capacity[link] / flows for link, flows in usage), default=math.inf)
