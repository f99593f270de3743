"""Max-min fair rates of the reference, by name of the activity."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from simcluster.reference import fair_rates as reference
from simcluster.traffic.fairness import Usage


def fair_rates(
    usages: Mapping[int, Usage], capacity: Sequence[float], bounds: Mapping[int, float] = MappingProxyType({})
) -> dict[int, float]:
    """Return the rate per flow (B/s) of every activity; ``bounds`` caps the rate of some."""
    demands = [reference.BandwidthDemand(usage, bounds.get(key, math.inf)) for key, usage in usages.items()]
    return dict(zip(usages, reference.fair_rates(demands, dict(enumerate(capacity))), strict=True))
