"""The links of an ep group whose tokens are relayed to experts: how busy it keeps them, by level.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.link_columns import LinkValues
from simcluster.collectives.relayed import TokenRoutes, levels
from simcluster.traffic.traffic import Fabric, group_of, patterns


@dataclass(frozen=True, slots=True)
class RelayedLinks:
    """Seconds that a byte of a balanced call's size keeps each link busy: ``between`` machines, and ``inside`` them.

    ``machines`` are the group's positions, machine by machine.
    """

    machines: tuple[tuple[int, ...], ...]
    between: Floats
    inside: Floats

    def longer(self, between: float, inside: float) -> float:
        """Return what multiplies the call's time when so many times the copies travel on each level, both at once."""
        busy = self.between + self.inside
        return float((between * self.between + inside * self.inside).max() / busy.max()) if busy.size else 1.0


def relayed_links(fabric: Fabric, capacity: LinkValues, routes: TokenRoutes, gpus: Sequence[int]) -> RelayedLinks:
    """Return the links of a group on these GPUs; ``capacity`` is B/s per link."""
    group = group_of(fabric, gpus)
    loads: list[dict[int, float]] = []
    for phases in levels(group, routes):
        parts = patterns(fabric, gpus, phases)
        loads.append({link: part.share * flows for part in parts for link, flows in part.usage})
    links = np.array(sorted({**loads[0], **loads[1]}), dtype=np.int64)
    rate = capacity.of(links).astype(np.float64)
    between, inside = (np.array([load.get(link, 0.0) for link in links.tolist()]) / rate for load in loads)
    return RelayedLinks(group.machines, between, inside)
