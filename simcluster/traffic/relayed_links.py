"""The links of an ep group whose tokens are relayed to experts: how busy it keeps them, by level.  Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simcluster.base.link_columns import LinkValues
from simcluster.collectives.relayed import RelayedLinks, TokenRoutes, levels
from simcluster.traffic.traffic import Fabric, group_of, patterns


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
