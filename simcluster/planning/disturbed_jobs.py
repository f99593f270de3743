"""Faults of several jobs on one cluster: each job's own for its ranks, all jobs' for links.

A job counts its ranks and its machines from 0, whichever of the cluster's they are.  Pure; imports the faults, plans of
jobs and disturbances.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from simcluster.errors import InputError
from simcluster.faults import Fault
from simcluster.faults.by_effect import LinkFault, by_effect
from simcluster.planning.disturbances import Disturbances
from simcluster.planning.disturbed_links import capacity_profiles
from simcluster.planning.disturbed_ranks import RankPrograms
from simcluster.planning.jobs import JointPlan
from simcluster.planning.ops import StageProgram
from simcluster.planning.profiles import Profile, product
from simcluster.topology import Cluster


def own_machines(gpus: Sequence[int], cluster: Cluster) -> list[int]:
    """The machine of every rank of a job on these GPUs, counted in the order in which the job has them."""
    hosts = [cluster.host_of[gpu] for gpu in gpus]
    number = {host: own for own, host in enumerate(dict.fromkeys(hosts))}
    return [number[host] for host in hosts]


def link_faults(faults: Sequence[Fault], gpus: Sequence[int], cluster: Cluster) -> list[LinkFault]:
    """A job's faults of links, with the cluster's numbers for its ranks and machines."""
    machines = list(dict.fromkeys(cluster.host_of[gpu] for gpu in gpus))
    found: list[LinkFault] = []
    for fault in by_effect(faults).links:
        change: dict[str, int] = {}
        if fault.nic_of is not None:
            change["nic_of"] = gpus[fault.nic_of]
        if fault.uplinks_of is not None:
            if fault.uplinks_of >= len(machines):
                raise InputError(
                    f"uplinks_of: the job has no machine {fault.uplinks_of}; it has {len(machines)}, counted from 0"
                )
            change["uplinks_of"] = machines[fault.uplinks_of]
        found.append(fault.model_copy(update=change))
    return found


def joint_capacities(jobs: Sequence[tuple[Sequence[Fault], int]], cluster: Cluster) -> dict[int, Profile]:
    """By link, what is left of its capacity over time by the faults of all jobs, each with its job's seed."""
    parts: dict[int, list[Profile]] = {}
    for faults, seed in jobs:
        for link, profile in capacity_profiles(faults, cluster, seed).items():
            parts.setdefault(link, []).append(profile)
    return {link: product(own) for link, own in parts.items()}


def joint_disturbances(
    ranks: Sequence[RankPrograms],
    speeds: Sequence[Mapping[int, Profile]],
    plan: JointPlan,
    capacities: Mapping[int, Profile],
) -> Disturbances:
    """All jobs' disturbances, ranks numbered through."""
    job_of = [(job, numbers.start) for job, numbers in enumerate(plan.ranks) for _ in numbers]

    def colour(rank: int) -> Hashable:
        job, first = job_of[rank]
        return ranks[job].colour(rank - first)

    def program(rank: int, of_stage: StageProgram) -> StageProgram:
        job, first = job_of[rank]
        return ranks[job].program(rank - first, of_stage)

    return Disturbances(
        speeds={
            numbers.start + rank: profile
            for numbers, own in zip(plan.ranks, speeds, strict=True)
            for rank, profile in own.items()
        },
        capacities=capacities,
        colour=colour,
        program=program,
    )
