"""Several jobs on one cluster at once: each is slowed by the others where their traffic meets.

Jobs begin together and repeat their step until the longest one has had its own, so that a short job meets a long one
for all of its time; a job's step time is the mean over its steps.  Imports simulate's
planning, lowering and the engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from simcluster.devices.device import Device, load_device
from simcluster.documents.overrides import apply_overrides
from simcluster.documents.reading import Document, read_document, validate
from simcluster.documents.spec import Spec
from simcluster.errors import InputError
from simcluster.lowering.lower import Choices, lower
from simcluster.planning.disturbed_jobs import joint_capacities, joint_disturbances, link_faults, own_machines
from simcluster.planning.disturbed_links import permanently
from simcluster.planning.disturbed_ranks import RankPrograms, slowness, speed_profiles
from simcluster.planning.jobs import JointPlan, PlacedFabric, joint_programs
from simcluster.planning.profiles import Profile
from simcluster.planning.stages import stage_programs
from simcluster.result import Result
from simcluster.scenario.scenario import Scenario, load
from simcluster.simulate import batch_of, choices_of, plan_job
from simcluster.simulating.players import play_by
from simcluster.topology import Cluster

_MOST_STEPS = 64  # a job that is shorter than this fraction of the longest one repeats no more often


@dataclass(frozen=True, slots=True)
class Placed:
    """A job, and the GPUs (numbers in the cluster) that its ranks 0, 1, ... run on."""

    scenario: Scenario
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shared:
    """A job beside others: its result, and its step time (s) on the same GPUs with the cluster to itself."""

    result: Result
    alone: float

    @property
    def slowdown(self) -> float:
        """How many times as long its step takes because of the others."""
        return self.result.step_time / self.alone


def simulate_together(jobs: Sequence[Placed], cluster: Cluster, *, folded: bool = True) -> list[Shared]:
    """Play jobs on one cluster, each by itself and all at once.

    Faults of ranks are a job's own, and what is wrong with links is wrong for all jobs, alone and together; jobs count
    their ranks and machines from 0, and times count from the begin of all jobs.  Raises InputError when a GPU is given
    twice or is not in the cluster, when a job's ranks and GPUs differ in number, or when jobs ask for collectives
    played differently.
    """
    _check(jobs, cluster)
    links = [fault for job in jobs for fault in link_faults(job.scenario.faults, job.gpus, cluster)]
    cluster = cluster.scaled(permanently(links, cluster))
    varying = joint_capacities(
        [(link_faults(job.scenario.faults, job.gpus, cluster), job.scenario.seed) for job in jobs], cluster
    )

    def alone(job: Placed, steps: int) -> float:
        return _play([job], cluster, varying, [steps], folded=folded)[0].step_time

    seconds = [alone(job, job.scenario.steps) for job in jobs]
    longest = max(each * job.scenario.steps for each, job in zip(seconds, jobs, strict=True))
    steps = [min(_MOST_STEPS, math.ceil(longest / each)) for each in seconds]
    results = _play(jobs, cluster, varying, steps, folded=folded)
    for number, (job, count) in enumerate(zip(jobs, steps, strict=True)):
        if count != job.scenario.steps and (varying or job.scenario.faults):  # like with like: steps are not all alike
            seconds[number] = alone(job, count)
    return [Shared(result, each) for result, each in zip(results, seconds, strict=True)]


def _check(jobs: Sequence[Placed], cluster: Cluster) -> None:
    owner: dict[int, str] = {}
    for job in jobs:
        name = job.scenario.name
        if len(job.gpus) != job.scenario.gpus:
            raise InputError(f"job {name!r} has {job.scenario.gpus} ranks but is given {len(job.gpus)} GPUs")
        for gpu in job.gpus:
            if not 0 <= gpu < len(cluster.gpus):
                raise InputError(f"job {name!r}: there is no GPU {gpu}; the cluster has {len(cluster.gpus)}")
            if gpu in owner:
                raise InputError(
                    f"GPU {cluster.gpus[gpu]} is given to {owner[gpu]!r} and to {name!r}; a GPU has one job"
                )
            owner[gpu] = name
    if len({_key(choices_of(job.scenario, folded=True)) for job in jobs}) > 1:
        raise InputError(
            "jobs that run together must play collectives alike; give them the same collectives section and the same "
            "overlap.interference"
        )


def _key(choices: Choices) -> tuple[object, ...]:
    return (choices.methods.key, choices.steps, choices.interference)


def _play(
    jobs: Sequence[Placed], cluster: Cluster, varying: Mapping[int, Profile], steps: Sequence[int], *, folded: bool
) -> list[Result]:
    scenarios = [job.scenario.model_copy(update={"steps": count}) for job, count in zip(jobs, steps, strict=True)]
    planned = [plan_job(scenario, _device(scenario, cluster)) for scenario in scenarios]
    plan = JointPlan(tuple(job.plan for job, _ in planned))
    fabric = PlacedFabric(cluster, tuple(gpu for job in jobs for gpu in job.gpus))
    hosts = [own_machines(job.gpus, cluster) for job in jobs]
    ranks = [
        RankPrograms(scenario.faults, job.plan, own, scenario.seed, batch_of(scenario))
        for scenario, (job, _), own in zip(scenarios, planned, hosts, strict=True)
    ]
    speeds = [speed_profiles(scenario.faults, own) for scenario, own in zip(scenarios, hosts, strict=True)]
    slow = [slowness(scenario.faults, own) for scenario, own in zip(scenarios, hosts, strict=True)]
    lowered = lower(
        joint_programs([stage_programs(job) for job, _ in planned], plan),
        plan,
        fabric,
        cluster.capacity.tolist(),
        slowness=[factor for own in slow for factor in own],
        choices=choices_of(scenarios[0], folded=folded),
        disturbances=joint_disturbances(ranks, speeds, plan, varying),
    )
    if lowered.steps:
        raise InputError("jobs that run together are played in flow; leave collectives.detail: steps out")
    record = play_by("auto", lowered.played, lowered.capacity)
    return [
        Result(lowered=lowered, record=record, steps=scenario.steps, ranks=ranks, scenario=scenario, facts=facts)
        for scenario, ranks, (_, facts) in zip(scenarios, plan.ranks, planned, strict=True)
    ]


def _device(scenario: Scenario, cluster: Cluster) -> Device:
    """The GPU that a job has there, as its scenario scales it if it is the one that it names."""
    own = scenario.cluster
    return own.device if own.built.device == cluster.device else load_device(cluster.device)


# --- the document ---------------------------------------------------------------------------------------------------


class JobSpec(Spec):
    """A scenario that runs on part of the cluster: its own ``cluster`` section does not count.

    ``machines`` lists the machines that it takes, all their GPUs; left out, it takes the next free GPUs.
    """

    scenario: str
    machines: tuple[Annotated[int, Field(strict=True, ge=0)], ...] | None = None
    set: dict[str, Any] = Field(default_factory=dict)


class JobsSpec(Spec):
    """Jobs that share a cluster."""

    name: str = "jobs"
    cluster: dict[str, Any]
    jobs: Annotated[tuple[JobSpec, ...], Field(min_length=1)]


def load_jobs(
    path: str | Path, overrides: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()
) -> tuple[list[Placed], Cluster]:
    """The jobs of a file (``simcluster share``), placed; paths in it are relative to it, ``overrides`` change it.

    Raises InputError that names the file, the job and what does not fit.
    """
    document = apply_overrides(read_document(Path(path)), overrides)
    spec = validate(JobsSpec, document)
    shared = _absolute(spec.cluster, document)
    placed: list[Placed] = []
    taken: dict[int, None] = {}
    cluster: Cluster | None = None
    for number, job in enumerate(spec.jobs):
        try:
            scenario = load(_beside(document, job.scenario), [("cluster", shared), *job.set.items()])
            cluster = cluster or scenario.cluster.built
            gpus = _gpus(job, scenario, cluster, taken)
        except InputError as problem:
            raise document.error(("jobs", number), str(problem)) from None
        taken |= dict.fromkeys(gpus)
        placed.append(Placed(scenario, gpus))
    assert cluster is not None
    return placed, cluster


def _beside(document: Document, name: str) -> str:
    """A scenario's path relative to the jobs file, or a shipped name."""
    beside = document.folder / name
    return str(beside) if beside.exists() else name


def _absolute(cluster: dict[str, Any], document: Document) -> dict[str, Any]:
    topology = cluster.get("topology")
    if isinstance(topology, str) and (document.folder / topology).exists():
        return {**cluster, "topology": str((document.folder / topology).resolve())}
    return cluster


def _gpus(job: JobSpec, scenario: Scenario, cluster: Cluster, taken: dict[int, None]) -> tuple[int, ...]:
    if job.machines is None:
        free = [gpu for gpu in range(len(cluster.gpus)) if gpu not in taken][: scenario.gpus]
        if len(free) < scenario.gpus:
            raise InputError(
                f"job {scenario.name!r} needs {scenario.gpus} GPUs but only {len(free)} of the cluster's "
                f"{len(cluster.gpus)} are free; take a larger cluster, or set gpus"
            )
        return tuple(free)
    gpus = tuple(gpu for machine in job.machines for gpu, host in enumerate(cluster.host_of) if host == machine)
    if len(gpus) != scenario.gpus:
        raise InputError(
            f"job {scenario.name!r} has {scenario.gpus} ranks, but machines {list(job.machines)} have {len(gpus)} "
            "GPUs; name as many machines as the job needs, or give it gpus in set"
        )
    return gpus
