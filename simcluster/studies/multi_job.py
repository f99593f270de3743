"""Several jobs on one cluster at once: each is slowed down by the others where their traffic meets.

Jobs begin together and continue until the measured steps of every job are over, at least eight of each, so that none is
measured when a neighbour has left.  The first step of each, for which all begin at the same instant, and the last are
not measured.  How jobs meet shifts from step to step where their steps differ in length: a job's step time is the mean
over the measured ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field

from simcluster.base.arrays import Floats
from simcluster.base.clock import on_fitting_grid
from simcluster.base.errors import InputError
from simcluster.base.printable import one_line
from simcluster.base.profiles import Profile
from simcluster.base.shown import Shown
from simcluster.base.tables import Records
from simcluster.devices.device import load_device
from simcluster.documents.argument_types import checked
from simcluster.documents.diagnostics import refuse
from simcluster.documents.overrides import apply_overrides
from simcluster.documents.reading import read_document, validate
from simcluster.documents.spec import Spec
from simcluster.engine.job_record import simulate_job
from simcluster.engine.tabulate import tabulate
from simcluster.faults.capacities import in_cluster, joint_capacities, own_machines, with_permanent
from simcluster.faults.ranks import rank_disturbances, slowness
from simcluster.planning.jobs import JointPlan, PlacedFabric, joint_disturbances, joint_programs
from simcluster.planning.stages import stage_programs
from simcluster.results.result import Result
from simcluster.results.timeline import mean_step, step_ends
from simcluster.scenario.fields import ClusterSpec
from simcluster.scenario.files import resolve
from simcluster.scenario.given import ClusterLike, ScenarioLike, cluster_of, scenario_of
from simcluster.scenario.job import setting_of
from simcluster.scenario.scenario import Base, Scenario, scenario_path
from simcluster.step.planned import choices_of, folds, plan_job
from simcluster.symmetry.folding import Symmetry
from simcluster.topology import Cluster

_MEASURED = 8
"""Steps of every job that are measured at least; a scenario with more ``steps`` has those."""
_MOST_STEPS = 4096  # that one job plays
_SLACK = 1.25  # how much longer jobs are played than they are expected to take: they slow each other down


@dataclass(frozen=True, slots=True)
class Placed:
    """A job, and the GPUs (numbers in the cluster) that its ranks 0, 1, ... run on."""

    scenario: Scenario
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shared(Shown):
    """A job that shares its cluster: the result of all its steps, its step time (s), and that of the job ``alone``.

    Both times are means over the steps ``measured``, on the same GPUs; ``window`` is when those began and ended (s).
    """

    result: Result
    step_time: float
    alone: float
    measured: range
    window: tuple[float, float]

    @property
    def slowdown(self) -> float:
        """How many times as long its step takes because of the others."""
        return self.step_time / self.alone


@checked
def simulate_together(
    jobs: Sequence[Placed | tuple[ScenarioLike, Sequence[int]]], cluster: ClusterLike, *, folded: bool = True
) -> Records[Shared]:
    """Simulate jobs on one cluster, each alone and all at once; a job may be a pair of its scenario and its GPUs.

    Faults of ranks are a job's own, and what is wrong with links is wrong for all jobs, alone and together; jobs count
    their ranks and machines from 0, and times count from the begin of all jobs.  Raises InputError when a GPU is given
    twice or is not in the cluster, when a job's ranks and GPUs differ in number, or when jobs ask for collectives
    played differently.
    """
    placed = [_placed(job) for job in jobs]
    return Records(_together(placed, cluster_of(cluster, "simulate_together"), folded=folded))


def _together(jobs: Sequence[Placed], cluster: Cluster, *, folded: bool) -> list[Shared]:
    _check(jobs, cluster)
    links = [fault for job in jobs for fault in in_cluster(job.scenario.faults, job.gpus, cluster)]
    cluster = with_permanent(links, cluster, 0)  # none is drawn

    def play(which: Sequence[Placed], steps: Sequence[int]) -> list[Result]:
        def played() -> list[Result]:
            varying = joint_capacities(
                [(in_cluster(job.scenario.faults, job.gpus, cluster), job.scenario.seed) for job in jobs], cluster
            )
            return _play(which, cluster, varying, steps, folded=folded)

        return on_fitting_grid(played)

    if len(jobs) == 1:  # nobody to meet: all its steps count
        (only,) = play(jobs, [jobs[0].scenario.steps])
        steps = range(only.steps)
        return [Shared(only, only.step_time, only.step_time, steps, (0.0, only.step_time * only.steps))]
    found = []
    for job, (result, ends, measured) in zip(jobs, _until_all_are_measured(jobs, play), strict=True):
        (by_itself,) = play([job], [result.steps])  # like with like: steps need not be all alike
        own = mean_step(step_ends(by_itself.spans, result.steps), measured)
        window = float(ends[0]), float(ends[measured])
        found.append(Shared(result, mean_step(ends, measured), own, range(1, 1 + measured), window))
    return found


def _placed(job: Placed | tuple[ScenarioLike, Sequence[int]]) -> Placed:
    if isinstance(job, tuple) and len(job) == 2:
        return Placed(scenario_of(job[0], "simulate_together"), tuple(job[1]))
    takes = "jobs as pairs of a scenario and its GPUs, [(scenario, range(16)), ...]"
    return job if isinstance(job, Placed) else refuse(job, "simulate_together", takes)


def _until_all_are_measured(
    jobs: Sequence[Placed], play: Callable[[Sequence[Placed], Sequence[int]], list[Result]]
) -> list[tuple[Result, Floats, int]]:
    """Return every job's result, when its steps end, and how many steps after its first end before any job's last.

    Jobs are simulated again, longer, until that is as many of each as are to be measured.
    """
    wanted = [max(_MEASURED, job.scenario.steps) for job in jobs]
    paces, slack = [play([job], [1])[0].step_time for job in jobs], _SLACK
    while True:
        length = slack * max((1 + steps) * pace for steps, pace in zip(wanted, paces, strict=True))
        counts = [2 + math.ceil(length / pace) for pace in paces]
        _check_counts(jobs, counts)
        results = play(jobs, counts)
        ends = [step_ends(result.spans, result.steps) for result in results]
        over = min(float(own[-2]) for own in ends)
        measured = [int(np.searchsorted(own, over, side="right")) - 1 for own in ends]
        if all(found >= steps for found, steps in zip(measured, wanted, strict=True)):
            return list(zip(results, ends, measured, strict=True))
        paces = [float(own[-2]) / (len(own) - 1) for own in ends]
        slack *= _SLACK


def _check_counts(jobs: Sequence[Placed], counts: Sequence[int]) -> None:
    short, many = max(enumerate(counts), key=lambda each: each[1])
    if many > _MOST_STEPS:
        raise InputError(
            f"job {jobs[short].scenario.name!r} would be played {many:,} times until all measured steps of the longest "
            f"job are over; {_MOST_STEPS:,} are the most: give it a larger global batch, or the longest a smaller one"
        )


def _check(jobs: Sequence[Placed], cluster: Cluster) -> None:
    owner: dict[int, str] = {}
    for job in jobs:
        name = job.scenario.name
        if job.scenario.checkpoint is not None:
            raise InputError(f"job {name!r}: no checkpoint is played where jobs share a cluster; leave checkpoint out")
        if job.scenario.data is not None and job.scenario.data.loader is not None:
            raise InputError(f"job {name!r}: no loader is played where jobs share a cluster; leave data.loader out")
        if len(job.gpus) != job.scenario.gpus:
            raise InputError(
                f"job {name!r} has {job.scenario.gpus} ranks but is given {len(job.gpus)} GPUs; give it one a rank"
            )
        for gpu in job.gpus:
            if not 0 <= gpu < cluster.num_gpus:
                raise InputError(
                    f"job {name!r}: there is no GPU {gpu}; the cluster has GPUs 0 to {cluster.num_gpus - 1}"
                )
            if gpu in owner:
                raise InputError(
                    f"GPU {cluster.gpus[gpu]} is given to {owner[gpu]!r} and to {name!r}; a GPU has one job: give each "
                    f"GPUs or machines of its own"
                )
            owner[gpu] = name
    choices = [choices_of(job.scenario) for job in jobs]
    if len({(each.methods.key, each.steps, each.interference) for each in choices}) > 1:
        raise InputError(
            "jobs that run together must play collectives alike; give them the same collectives section and the same "
            "overlap.interference"
        )


def _play(
    jobs: Sequence[Placed], cluster: Cluster, varying: Mapping[int, Profile], steps: Sequence[int], *, folded: bool
) -> list[Result]:
    scenarios = [job.scenario.model_copy(update={"steps": count}) for job, count in zip(jobs, steps, strict=True)]
    own = [scenario.cluster for scenario in scenarios]  # a scenario scales the GPU that it names
    devices = [each.device if each.built.device == cluster.device else load_device(cluster.device) for each in own]
    planned = [plan_job(scenario, device) for scenario, device in zip(scenarios, devices, strict=True)]
    plan = JointPlan(tuple(job.plan for job, _ in planned))
    fabric = PlacedFabric(cluster, tuple(gpu for job in jobs for gpu in job.gpus))
    hosts = [own_machines(job.gpus, cluster) for job in jobs]
    each = list(zip(scenarios, planned, hosts, strict=True))
    disturbed = [
        rank_disturbances(
            scenario.faults,
            setting_of(scenario, job.plan, own, PlacedFabric(cluster, placed.gpus), cluster.wiring.link_capacity),
        )
        for placed, (scenario, (job, _), own) in zip(jobs, each, strict=True)
    ]
    slow = [factor for scenario, _, own in each for factor in slowness(scenario.faults, own, scenario.seed)]
    choices = choices_of(scenarios[0])
    if choices.steps:
        raise InputError("jobs that run together are simulated in flow; leave collectives.detail: steps out")
    programs = joint_programs([stage_programs(job) for job, _ in planned], plan)
    disturbances = joint_disturbances(disturbed, plan, varying)
    symmetry, capacity = Symmetry(programs, plan, fabric, choices.methods), cluster.link_capacity
    equal = folded and folds(*scenarios)
    folding = symmetry.folding(capacity, slow, disturbances) if equal else symmetry.unfolded(len(capacity))
    tables = tabulate(
        programs, plan, fabric, capacity, folding,
        slowness=slow, disturbances=disturbances, interference=choices.interference,
    )  # fmt: skip
    record, rates = simulate_job(tables), tables.tables.capacity.tolist()
    return [
        Result(
            record=record, folding=folding, capacity=rates, hop_by_hop=False, steps=scenario.steps, ranks=ranks,
            scenario=scenario, job=job, facts=facts,
        )
        for scenario, ranks, (job, facts) in zip(scenarios, plan.ranks, planned, strict=True)
    ]  # fmt: skip


# --- the file of ``simcluster share`` ---------------------------------------------------------------------------------


class JobSpec(Spec):
    """A scenario that runs on part of the cluster: its own ``cluster`` section does not count.

    ``machines`` lists the machines that it takes, all their GPUs; by default it takes the next free GPUs, as many as
    its ``gpus`` (or ``set``) says, or all that are left.
    """

    scenario: str
    machines: tuple[Annotated[int, Field(strict=True, ge=0)], ...] | None = None
    set: dict[str, Any] = Field(default_factory=dict)


def _by_name(cluster: object) -> object:
    """Return the section of a topology that is given by its name or path alone, as in a scenario."""
    return {"topology": cluster} if isinstance(cluster, str) else cluster


class JobsSpec(Spec):
    """Jobs that share a cluster."""

    name: Annotated[str, AfterValidator(one_line)] = "jobs"
    cluster: Annotated[dict[str, Any], BeforeValidator(_by_name)]
    jobs: Annotated[tuple[JobSpec, ...], Field(min_length=1)]


def load_jobs(
    path: str | Path, overrides: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()
) -> tuple[list[Placed], Cluster]:
    """Return the jobs of a file (``simcluster share``), placed; paths in it are relative to it.

    ``overrides`` change the file's document.  Raises InputError that names the file, the job and what does not fit.
    """
    document = apply_overrides(read_document(Path(path)), overrides)
    spec = validate(JobsSpec, document)
    shared, topology = spec.cluster, spec.cluster.get("topology")
    if isinstance(topology, str) and (document.folder / topology).exists():
        shared = {**shared, "topology": str((document.folder / topology).resolve())}
    found = resolve(replace(document, data={"cluster": shared}, marks={}))
    try:
        cluster = validate(ClusterSpec, replace(found, data=found.data["cluster"])).built
    except InputError as problem:
        raise document.error(("cluster",), str(problem)) from None
    placed: list[Placed] = []
    taken: dict[int, None] = {}
    for number, job in enumerate(spec.jobs):
        try:
            missing = [machine for machine in job.machines or () if machine not in cluster.host_of]
            if missing:
                raise InputError(f"the cluster has no machine {missing[0]}; name some of 0 to {max(cluster.host_of)}")
            relative = document.folder / job.scenario
            name = str(relative) if relative.exists() else job.scenario
            scenario = Base(name).scenario((("cluster", shared), *_size(job, name, cluster, taken), *job.set.items()))
            gpus = _gpus(job, scenario, cluster, taken)
        except InputError as problem:
            raise document.error(("jobs", number), str(problem)) from None
        taken |= dict.fromkeys(gpus)
        placed.append(Placed(scenario, gpus))
    return placed, cluster


def _size(job: JobSpec, name: str, cluster: Cluster, taken: dict[int, None]) -> list[tuple[str, int]]:
    """Return the GPUs of a job that does not give them: those of its machines, or all that are left."""
    if "gpus" in job.set or "gpus" in read_document(scenario_path(name)).data:
        return []
    if job.machines is None:
        count = cluster.num_gpus - len(taken)
    else:
        count = sum(host in job.machines for host in cluster.host_of)
    return [("gpus", count)] if count else []


def _gpus(job: JobSpec, scenario: Scenario, cluster: Cluster, taken: dict[int, None]) -> tuple[int, ...]:
    if job.machines is None:
        free = [gpu for gpu in range(cluster.num_gpus) if gpu not in taken][: scenario.gpus]
        if len(free) < scenario.gpus:
            raise InputError(
                f"job {scenario.name!r} needs {scenario.gpus} GPUs but only {len(free)} of the cluster's "
                f"{cluster.num_gpus} are free; take a larger cluster, or set gpus"
            )
        return tuple(free)
    gpus = tuple(gpu for machine in job.machines for gpu, host in enumerate(cluster.host_of) if host == machine)
    if len(gpus) != scenario.gpus:
        raise InputError(
            f"job {scenario.name!r} has {scenario.gpus} ranks, but machines {list(job.machines)} have {len(gpus)} "
            "GPUs; name as many machines as the job needs, or give it gpus in set"
        )
    return gpus
