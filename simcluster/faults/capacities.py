"""Remaining capacity of links under faults, permanent or over time, for one job or several jobs.

Of several jobs on one cluster each has its faults for its ranks, and all have those of links. A job counts its ranks
and its nodes from 0, whichever of the cluster's they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from simcluster.base.clock import Profile, multiply_profiles
from simcluster.faults.spec import FaultSpec, acting_faults
from simcluster.topology import Cluster


def apply_permanent_faults(faults: Sequence[FaultSpec], cluster: Cluster, seed: int) -> Cluster:
    """Return the cluster with the capacity of links reduced by permanent faults."""
    found: list[tuple[str, str, float]] = []
    for fault in acting_faults(faults, "left"):
        if fault.lasts:
            links = fault.links(cluster)
            pairs = {tuple(sorted(cluster.links[link])): float(cluster.capacity[link]) for link in links}
            found += [(a, b, fault.left(capacity)) for (a, b), capacity in pairs.items()]
    for fault in acting_faults(faults, "lefts"):
        lefts = {tuple(sorted(cluster.links[link])): left for link, left in fault.lefts(cluster, seed).items()}
        found += [(a, b, left) for (a, b), left in lefts.items()]
    return cluster.scaled(found)


def capacity_profiles(faults: Sequence[FaultSpec], cluster: Cluster, seed: int) -> dict[int, Profile]:
    """Return, by link, the profile over time of its remaining capacity, where faults make it vary."""
    parts: dict[int, list[Profile]] = {}
    for fault in acting_faults(faults, "left"):
        if not fault.lasts:
            shared: dict[float, Profile] = {}  # links that are left as much change together
            for link in fault.links(cluster):
                left = fault.left(float(cluster.capacity[link]))
                if left not in shared:
                    shared[left] = fault.profile(left, seed)
                parts.setdefault(link, []).append(shared[left])
    return {link: multiply_profiles(own) for link, own in parts.items()}


def number_nodes(gpus: Sequence[int], cluster: Cluster) -> list[int]:
    """Return the node number of every rank of a job on these GPUs; the job's nodes are counted from 0."""
    hosts = [cluster.host_of[gpu] for gpu in gpus]
    number = {host: own for own, host in enumerate(dict.fromkeys(hosts))}
    return [number[host] for host in hosts]


def to_cluster_numbers(faults: Sequence[FaultSpec], gpus: Sequence[int], cluster: Cluster) -> list[FaultSpec]:
    """Return a job's faults, with link faults renumbered to the cluster's ranks and nodes."""
    machines = list(dict.fromkeys(cluster.host_of[gpu] for gpu in gpus))
    return [fault.in_cluster(gpus, machines) for fault in faults]


def joint_capacities(jobs: Sequence[tuple[Sequence[FaultSpec], int]], cluster: Cluster) -> dict[int, Profile]:
    """Return, by link, the profile of its remaining capacity under the faults of all jobs (faults, seed)."""
    parts: dict[int, list[Profile]] = {}
    for faults, seed in jobs:
        for link, profile in capacity_profiles(faults, cluster, seed).items():
            parts.setdefault(link, []).append(profile)
    return {link: multiply_profiles(own) for link, own in parts.items()}
