"""Bytes that a single collective puts on each link, and collisions of its flows on shared links."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.collectives.entry import MessageSizes
from simcluster.studies.bench.collective import collective_transfers, simulate_transfers
from simcluster.topology import Cluster
from simcluster.topology.links import node_label, switch_levels
from simcluster.traffic.traffic import Traffic

Link = tuple[str, str]


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """Load of one link: the largest number of concurrent flows, and the total bytes that it carries.

    ``collisions`` is the ratio of these flows to an even spread of whole flows over the links of its level: 1 or less
    is good.
    """

    link: Link
    medium: str
    capacity: float
    flows: float
    bytes: float
    collisions: float = 1.0

    @property
    def busy(self) -> float:
        """Seconds that the link needs to carry its bytes at full capacity (a lower bound of the collective's time)."""
        return self.bytes / self.capacity


@dataclass(frozen=True, slots=True)
class LevelLoad:
    """Load of all links of equal capacity between the same two switch tiers, such as "leaf -> spine".

    Of ``links`` that the traffic could have taken ``used`` carry some; ``mean`` is flows per link if all shared evenly,
    ``most`` those on the fullest link, ``worst``. Links that could carry traffic are, upwards, those that leave the
    nodes which send here, and downwards those that enter the nodes which receive (within a tier, whichever are fewer).
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
        """Ratio of the flows on the fullest link to the mean flows per link; 1 is best.

        MODELLING.md C.3 calls this slowdown, if these links limit the flows.
        """
        return _collision_ratio(self.most, self.mean)


@dataclass(frozen=True, slots=True)
class BusiestLinks:
    """Group of links that limits a collective: the links on which its transfers take longest.

    ``ends`` names the nodes that they join ("nic -> leaf"); ``links`` of them carry ``load`` bytes each at
    ``bandwidth`` B/s, which takes ``busy`` seconds. ``latency`` is the sum of the rounds' latencies in seconds, mean
    over the hops.
    """

    ends: str
    medium: str
    bandwidth: float
    links: int
    load: float
    busy: float
    latency: float


@dataclass(frozen=True, slots=True)
class CollectiveLoads:
    """Loads of all links that a collective uses, and of each level of links (between two tiers), busiest first."""

    links: tuple[LinkLoad, ...]
    levels: tuple[LevelLoad, ...]


def measure_link_loads(cluster: Cluster, traffics: Sequence[Sequence[Traffic]]) -> CollectiveLoads:
    """Compute the load of each link for groups of transfers that run concurrently, each group in series."""
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
    capacity = cluster.capacity
    loads = {
        link: LinkLoad(cluster.links[link], _link_medium(cluster, link), float(capacity[link]), flows[link], total)
        for link, total in moved.items()
    }
    ordered = sorted(loads, key=lambda link: (-loads[link].busy, link))
    found = _compute_level_loads(cluster, loads, ordered)
    level = {(each.ends, each.medium, each.capacity): each for each in found}
    links = [
        replace(loads[link], collisions=_collision_ratio(loads[link].flows, level[_level_of_link(cluster, link)].mean))
        for link in ordered
    ]
    return CollectiveLoads(tuple(links), found)


def busiest_links_of_collective(
    cluster: Cluster,
    groups: Sequence[Sequence[int]],
    kind: str,
    size: float | MessageSizes,
    *,
    algorithm: str = "auto",
    nccl: str = "auto",
    root: int = 0,
) -> BusiestLinks:
    """Return the links that stay busy longest when all groups run this collective at the same time.

    Arguments and errors are those of ``collective.collective_times``.
    """
    return find_busiest_links(
        cluster, collective_transfers(cluster, groups, kind, size, algorithm=algorithm, nccl=nccl, root=root)
    )


def find_busiest_links(cluster: Cluster, groups: Sequence[Sequence[Traffic]]) -> BusiestLinks:
    """Return the links that stay busy longest when all groups run their transfers at the same time."""
    load: dict[int, float] = {}
    latency = 0.0
    for traffics in groups:
        latency = max(latency, sum(traffic.latency_seconds for traffic in traffics))
        for traffic in traffics:
            for link, flows in traffic.usage:
                load[link] = load.get(link, 0.0) + flows * traffic.round_bytes * traffic.rounds
    capacity = cluster.capacity
    worst = max(load, key=lambda link: (load[link] / capacity[link], -link))
    nature = _level_of_link(cluster, worst)
    equal = [link for link in load if math.isclose(load[link], load[worst], rel_tol=1e-9)]
    alike = sum(1 for link in equal if _level_of_link(cluster, link) == nature)
    ends, medium, bandwidth = nature
    return BusiestLinks(ends, medium, bandwidth, alike, load[worst], load[worst] / bandwidth, latency)


def link_utilization_over_time(
    cluster: Cluster, traffics: Sequence[Sequence[Traffic]], links: Sequence[Link], bins: int = 400
) -> tuple[Floats, Floats]:
    """Return the edges (s) of equal time bins, and an array ``[link, bin]`` of each link's utilization in each bin.

    The groups' transfers are simulated on one network. A transfer moves its bytes at an even rate from its start to its
    end, so a bin may be above 1 where the means of several meet.
    """
    spans = simulate_transfers(cluster, traffics)
    edges = np.linspace(0.0, max(end for _, _, end in spans), bins + 1)
    row = {cluster.link_index[link]: number for number, link in enumerate(links)}
    matrix = np.zeros((len(links), bins))
    for traffic, start, end in spans:
        inside = np.diff(np.clip(edges, start, end)) / (end - start)
        for link, flows in traffic.usage:
            if link in row:
                matrix[row[link]] += flows * traffic.round_bytes * traffic.rounds * inside
    capacity = np.array([cluster.capacity[cluster.link_index[link]] for link in links])
    return edges, matrix / (np.diff(edges) * capacity[:, None])


def _compute_level_loads(cluster: Cluster, loads: Mapping[int, LinkLoad], ordered: list[int]) -> tuple[LevelLoad, ...]:
    by_nature: dict[tuple[str, str, float], list[int]] = {}
    for link in ordered:
        by_nature.setdefault(_level_of_link(cluster, link), []).append(link)
    graph, index, height = cluster.graph, cluster.link_index, switch_levels(cluster.graph)
    levels = []
    for (ends, medium, capacity), links in by_nature.items():
        leaving = {a: None for a, _ in (loads[link].link for link in links)}
        entering = {b: None for _, b in (loads[link].link for link in links)}
        out = (index[a, b] for a in leaving for b in graph.succ[a])
        into = (index[a, b] for b in entering for a in graph.pred[b])
        leaves, enters = (
            sum(_level_of_link(cluster, link) == (ends, medium, capacity) for link in part) for part in (out, into)
        )
        worst = max(links, key=lambda link: loads[link].flows)
        up = height.get(loads[worst].link[1], 0) - height.get(loads[worst].link[0], 0)
        could = leaves if up > 0 else enters if up < 0 else min(leaves, enters)
        mean = sum(loads[link].flows for link in links) / could
        name = loads[worst].link
        levels.append(LevelLoad(ends, medium, capacity, could, len(links), mean, loads[worst].flows, name))
    return tuple(levels)


def _collision_ratio(flows: float, mean: float) -> float:
    return flows / max(mean, min(flows, 1.0))


def _level_of_link(cluster: Cluster, link: int) -> tuple[str, str, float]:
    a, b = cluster.links[link]
    ends = f"{node_label(cluster.graph, a)} -> {node_label(cluster.graph, b)}"
    return ends, _link_medium(cluster, link), float(cluster.capacity[link])


def _link_medium(cluster: Cluster, link: int) -> str:
    a, b = cluster.links[link]
    return str(cluster.graph[a][b]["medium"])
