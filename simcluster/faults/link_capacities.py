"""Capacity of links under faults, permanent or over time, for one job or several.

Of several jobs on one cluster each has its faults for its ranks, and all have those of links. A job counts its ranks
and its nodes from 0, whichever of the cluster's they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from simcluster.base.clock import Profile, multiply_profiles
from simcluster.faults.fault_spec import FaultSpec, faults_with_effect
from simcluster.topology import Cluster


def apply_permanent_faults(faults: Sequence[FaultSpec], cluster: Cluster, seed: int) -> Cluster:
    """Return the cluster with link capacities reduced by permanent faults."""
    found: list[tuple[str, str, float]] = []
    for fault in faults_with_effect(faults, "remaining_share"):
        if fault.is_permanent:
            links = fault.affected_links(cluster)
            pairs = {tuple(sorted(cluster.links[link])): float(cluster.capacity[link]) for link in links}
            found += [(a, b, fault.remaining_share(capacity)) for (a, b), capacity in pairs.items()]
    for fault in faults_with_effect(faults, "remaining_shares"):
        lefts = {tuple(sorted(cluster.links[key])): left for key, left in fault.remaining_shares(cluster, seed).items()}
        found += [(a, b, left) for (a, b), left in lefts.items()]
    return cluster.with_scaled_links(found)


def capacity_profiles(faults: Sequence[FaultSpec], cluster: Cluster, seed: int) -> dict[int, Profile]:
    """Return, for each link whose capacity varies under faults, the factor on its capacity over time."""
    parts: dict[int, list[Profile]] = {}
    for fault in faults_with_effect(faults, "remaining_share"):
        if not fault.is_permanent:
            shared: dict[float, Profile] = {}  # links that are left as much change together
            for link in fault.affected_links(cluster):
                left = fault.remaining_share(float(cluster.capacity[link]))
                if left not in shared:
                    shared[left] = fault.profile(left, seed)
                parts.setdefault(link, []).append(shared[left])
    return {link: multiply_profiles(own) for link, own in parts.items()}


def node_numbers_of_ranks(gpus: Sequence[int], cluster: Cluster) -> list[int]:
    """Return the node number of every rank of a job; the job's nodes are numbered from 0."""
    hosts = [cluster.host_of[gpu] for gpu in gpus]
    number = {host: own for own, host in enumerate(dict.fromkeys(hosts))}
    return [number[host] for host in hosts]


def to_cluster_numbers(faults: Sequence[FaultSpec], gpus: Sequence[int], cluster: Cluster) -> list[FaultSpec]:
    """Return a job's faults with its link, rank and node numbers replaced by those of the cluster."""
    machines = list(dict.fromkeys(cluster.host_of[gpu] for gpu in gpus))
    return [fault.with_cluster_numbers(gpus, machines) for fault in faults]


def joint_capacity_profiles(jobs: Sequence[tuple[Sequence[FaultSpec], int]], cluster: Cluster) -> dict[int, Profile]:
    """Return each link's capacity factor over time under the faults of all jobs (faults and seed of each)."""
    parts: dict[int, list[Profile]] = {}
    for faults, seed in jobs:
        for link, profile in capacity_profiles(faults, cluster, seed).items():
            parts.setdefault(link, []).append(profile)
    return {link: multiply_profiles(own) for link, own in parts.items()}
