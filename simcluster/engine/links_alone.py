"""What transfers do on links of their own: ``alone_seconds`` and ``overlaps.uses`` in columns over links.

A ring of 131,072 ranks crosses a million links, and is asked for again by every collective on it: what it uses is put
in columns once.  To the bit the same.  Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.base.clock import on_grid
from simcluster.engine.longest_path import NeedsEventsError, alone_seconds
from simcluster.traffic.fairness import Usage
from simcluster.traffic.traffic import Traffic

_MANY = 64
"""Links from which on columns pay."""


class LinksAlone:
    """Transfers on free links, each carrying ``capacity`` B/s."""

    def __init__(self, capacity: Floats) -> None:
        self._rates, self._capacity = capacity, capacity.tolist()
        self._known: dict[int, tuple[Usage, Ints, Floats, float]] = {}  # by identity of the usage, which is kept

    def seconds(self, traffics: Sequence[Traffic]) -> float:
        """What they take one after the other; NeedsEventsError for a link that carries nothing."""
        return sum(map(self._seconds, traffics))

    def uses(self, traffics: Sequence[Traffic], tight: Bools) -> Floats:
        """Of each use of a ``tight`` link its number, begin, end and the part of it that is used [use, 4]."""
        found = [np.zeros((0, 4))]
        at = 0.0
        for traffic in traffics:
            end = at + self._seconds(traffic)
            if traffic.usage:
                links, flows, _ = self._columns(traffic.usage)
                own = tight[links]
                if own.any():
                    links, flows = links[own], flows[own]
                    rows = np.empty((len(links), 4))
                    rows[:, 0], rows[:, 1], rows[:, 2] = links, at + traffic.latency_seconds, end
                    rows[:, 3] = flows * self.rate(traffic) / self._rates[links]
                    found.append(rows)
            at = end
        return np.concatenate(found)

    def _seconds(self, traffic: Traffic) -> float:
        if len(traffic.usage) < _MANY or not traffic.round_bytes:
            return alone_seconds(traffic, self._capacity)
        rate = self.rate(traffic)
        if rate <= 0:
            raise NeedsEventsError("a transfer crosses a link that carries nothing")
        return traffic.latency_seconds + traffic.rounds * on_grid(traffic.round_bytes / rate)

    def rate(self, traffic: Traffic) -> float:
        """B/s of each of the flows of a traffic that crosses links."""
        return min(traffic.bound, self._columns(traffic.usage)[2])

    def _columns(self, usage: Usage) -> tuple[Ints, Floats, float]:
        """Links, flows on each, and the rate that they leave a flow."""
        known = self._known.get(id(usage))
        if known is None:
            columns = np.array(usage, dtype=np.float64)
            links, flows = columns[:, 0].astype(np.int64), columns[:, 1].copy()
            known = usage, links, flows, float((self._rates[links] / flows).min())
            self._known[id(usage)] = known
        return known[1:]
