"""What a single collective puts on every link, and where its flows collide.

Imports collectives and the cluster with its report.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simcluster.collective import collective_traffics
from simcluster.topology import Cluster
from simcluster.topology.describe import label, switch_levels

Link = tuple[str, str]


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """What one link carries: ``flows`` at once at most, ``bytes`` in all, ``busy`` seconds of the link for itself."""

    link: Link
    medium: str
    capacity: float
    flows: float
    bytes: float

    @property
    def busy(self) -> float:
        """Seconds that the bytes take at full speed: no collective with them is shorter."""
        return self.bytes / self.capacity


@dataclass(frozen=True, slots=True)
class Level:
    """Links that join equal kinds of node ("leaf -> spine") and are equally fast (B/s).

    Of ``links`` that the traffic could have taken ``used`` carry some; ``mean`` is flows per link if all shared evenly,
    ``most`` those on the fullest link, ``worst``.  Those that could are, upwards, the links that leave the nodes which
    send here, and downwards those that enter the nodes which receive (within a tier, whichever are fewer).
    """

    ends: str
    medium: str
    capacity: float
    links: int
    used: int
    mean: float
    most: float
    worst: Link

    @property
    def collisions(self) -> float:
        """How many times as much the fullest link carries as it would with whole flows dealt out evenly: 1 is best.

        What modelling.md C.3 calls slowdown, if these links are what limits the flows.
        """
        return self.most / max(self.mean, min(self.most, 1.0))


@dataclass(frozen=True, slots=True)
class CollectiveLoads:
    """Links by busy time, longest first, and levels by that of their worst link."""

    links: tuple[LinkLoad, ...]
    levels: tuple[Level, ...]


def collective_loads(
    cluster: Cluster, groups: Sequence[Sequence[int]], kind: str, size: float, *, algorithm: str = "auto"
) -> CollectiveLoads:
    """What a collective of ``size`` bytes puts on every link when all groups run it at once.

    Errors as those of ``collective.collective_times``.
    """
    traffics = collective_traffics(cluster, groups, kind, size, algorithm=algorithm)
    moved: dict[int, float] = {}
    flows: dict[int, float] = {}
    for together in itertools.zip_longest(*traffics):  # the groups' first activities, their second ones, ...
        at_once: dict[int, float] = {}
        for traffic in together:
            for link, count in traffic.usage if traffic else ():
                at_once[link] = at_once.get(link, 0.0) + count
                moved[link] = moved.get(link, 0.0) + count * traffic.round_bytes * traffic.rounds
        for link, count in at_once.items():
            flows[link] = max(count, flows.get(link, 0.0))
    loads = {
        link: LinkLoad(cluster.links[link], _medium(cluster, link), float(cluster.capacity[link]), flows[link], total)
        for link, total in moved.items()
    }
    ordered = sorted(loads, key=lambda link: (-loads[link].busy, link))
    return CollectiveLoads(tuple(loads[link] for link in ordered), _levels(cluster, loads, ordered))


def _levels(cluster: Cluster, loads: Mapping[int, LinkLoad], ordered: Sequence[int]) -> tuple[Level, ...]:
    by_nature: dict[tuple[str, str, float], list[int]] = {}
    for link in ordered:
        by_nature.setdefault(_nature(cluster, link), []).append(link)
    graph, index, height = cluster.graph, cluster.link_index, switch_levels(cluster.graph)
    levels = []
    for (ends, medium, capacity), links in by_nature.items():
        leaving = {a: None for a, _ in (loads[link].link for link in links)}
        entering = {b: None for _, b in (loads[link].link for link in links)}
        out = (index[a, b] for a in leaving for b in graph.succ[a])
        into = (index[a, b] for b in entering for a in graph.pred[b])
        leaves, enters = (
            sum(_nature(cluster, link) == (ends, medium, capacity) for link in part) for part in (out, into)
        )
        worst = max(links, key=lambda link: loads[link].flows)
        up = height.get(loads[worst].link[1], 0) - height.get(loads[worst].link[0], 0)
        could = leaves if up > 0 else enters if up < 0 else min(leaves, enters)
        mean = sum(loads[link].flows for link in links) / could
        name = loads[worst].link
        levels.append(Level(ends, medium, capacity, could, len(links), mean, loads[worst].flows, name))
    return tuple(levels)


def _nature(cluster: Cluster, link: int) -> tuple[str, str, float]:
    a, b = cluster.links[link]
    ends = f"{label(cluster.graph, a)} -> {label(cluster.graph, b)}"
    return ends, _medium(cluster, link), float(cluster.capacity[link])


def _medium(cluster: Cluster, link: int) -> str:
    a, b = cluster.links[link]
    return str(cluster.graph[a][b]["medium"])
