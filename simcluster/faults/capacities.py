"""What faults leave of the capacities of links, for ever or as time goes on.  Pure."""

from __future__ import annotations

from collections.abc import Sequence

from simcluster.base.profiles import Profile, Watched, product
from simcluster.faults.spec import FaultSpec, acting
from simcluster.faults.where import OnLinks
from simcluster.topology import Cluster


def with_permanent(faults: Sequence[FaultSpec], cluster: Cluster) -> Cluster:
    """The cluster with what is wrong with its links for ever."""
    found: list[tuple[str, str, float]] = []
    for fault in acting(faults, "left"):
        if fault.lasts:
            links = fault.links(cluster)
            pairs = {tuple(sorted(cluster.links[link])): float(cluster.capacity[link]) for link in links}
            found += [(a, b, fault.left(capacity)) for (a, b), capacity in pairs.items()]
    return cluster.scaled(found)


def capacity_profiles(
    faults: Sequence[FaultSpec], cluster: Cluster, seed: int, watched: Sequence[OnLinks] = ()
) -> dict[int, Profile]:
    """By link, what is left of its capacity over time, where that changes or others take some of it.

    The links of ``watched`` faults have a profile, too, in which nothing changes.
    """
    parts: dict[int, list[Profile]] = {}
    for number, each in enumerate(watched):
        for link in each.links(cluster):
            parts.setdefault(link, []).append(Watched(number))
    for fault in acting(faults, "left"):
        if not fault.lasts:
            shared: dict[float, Profile] = {}  # links that are left as much change together
            for link in fault.links(cluster):
                left = fault.left(float(cluster.capacity[link]))
                if left not in shared:
                    shared[left] = fault.profile(left, seed)
                parts.setdefault(link, []).append(shared[left])
    return {link: product(own) for link, own in parts.items()}
