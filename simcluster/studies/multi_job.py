"""Simulation of several jobs that share one cluster and slow each other down on shared links.

How long each job is simulated, and which steps count: ``measured_jobs``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from simcluster.base.clock import simulate_on_exact_grid
from simcluster.base.display import Displayable
from simcluster.base.errors import InputError
from simcluster.base.tables import Records
from simcluster.base.texts import escape_line_breaks
from simcluster.base.units import NamedSeconds
from simcluster.devices.device import load_device
from simcluster.documents.argument_types import check_arguments
from simcluster.documents.base_spec import Spec
from simcluster.documents.diagnostics import reject_argument
from simcluster.documents.overrides import apply_overrides
from simcluster.documents.yaml_documents import read_document, validate_document
from simcluster.engine.job_record import simulate_job
from simcluster.engine.tabulate import tabulate_job
from simcluster.faults import link_capacities
from simcluster.faults.link_capacities import joint_capacity_profiles, to_cluster_numbers
from simcluster.faults.rank_effects import permanent_slowdowns, rank_disturbances
from simcluster.planning.joint_jobs import (
    JointParallelPlan,
    PlacedFabric,
    delay_programs,
    join_disturbances,
    join_programs,
)
from simcluster.planning.stage_programs import build_stage_programs
from simcluster.results.result import Result
from simcluster.results.timeline import mean_step_time, step_end_times
from simcluster.scenario.document_resolution import resolve_scenario
from simcluster.scenario.job_conversion import fault_context
from simcluster.scenario.scenario import BaseScenario, Scenario, find_scenario_file
from simcluster.scenario.scenario_arguments import ClusterLike, ScenarioLike, to_cluster, to_scenario
from simcluster.scenario.scenario_fields import ClusterSpec
from simcluster.step.step_plan import collective_options, is_foldable, plan_job
from simcluster.studies.measured_jobs import PlacedJob as PlacedJob
from simcluster.studies.measured_jobs import simulate_measured_steps
from simcluster.symmetry.folding import SymmetryFinder
from simcluster.topology import Cluster


@dataclass(frozen=True, slots=True)
class SharedJobResult(Displayable):
    """Result of one job on a shared cluster: its step time (s) with the other jobs, and its step time alone.

    Both times are means over the steps ``measured``, on the same GPUs; ``window`` is when those began and ended (s).
    """

    result: Result
    step_time: float
    alone: float
    measured: range
    window: tuple[float, float]

    @property
    def slowdown(self) -> float:
        """Ratio of the job's step time with the other jobs to its step time alone."""
        return self.step_time / self.alone


@check_arguments
def simulate_jobs(
    jobs: Sequence[PlacedJob | tuple[ScenarioLike, Sequence[int]]], cluster: ClusterLike, *, folded: bool = True
) -> Records[SharedJobResult]:
    """Simulate several jobs on one cluster, each job alone and all jobs together.

    A job may be a pair of its scenario and its GPUs. Faults of ranks belong to one job; faults of links act on all
    jobs, alone and together. Jobs count their ranks and nodes from 0, and times count from the start of all jobs.
    Raises InputError when a GPU is given twice or is not in the cluster, when a job's ranks and GPUs differ in number,
    or when jobs ask for different collectives.
    """
    placed = [_as_placed_job(job) for job in jobs]
    shared = to_cluster(cluster, "simulate_jobs")
    _check_jobs(placed, shared)
    simulator = _JobSimulator(placed, shared, folded=folded)
    if len(placed) == 1:  # without other jobs all steps count
        (only,) = simulator(placed, [placed[0].scenario.steps])
        window = 0.0, only.step_time * only.steps
        return Records([SharedJobResult(only, only.step_time, only.step_time, range(only.steps), window)])
    found = []
    for job, (result, ends, measured) in zip(placed, simulate_measured_steps(placed, simulator), strict=True):
        (alone,) = simulator([job], [result.steps])  # the same steps, which may differ in length
        own = mean_step_time(step_end_times(alone.spans, result.steps), measured)
        window = float(ends[0]), float(ends[measured])
        found.append(SharedJobResult(result, mean_step_time(ends, measured), own, range(1, 1 + measured), window))
    return Records(found)


def simulate_placed_job(job: PlacedJob, cluster: Cluster) -> Result:
    """Simulate one job alone on its GPUs of a cluster."""
    (found,) = _JobSimulator([job], cluster, folded=True)([job], [job.scenario.steps])
    return found


def _as_placed_job(job: PlacedJob | tuple[ScenarioLike, Sequence[int]]) -> PlacedJob:
    if isinstance(job, tuple) and len(job) == 2:
        return PlacedJob(to_scenario(job[0], "simulate_jobs"), tuple(job[1]))
    takes = "jobs as pairs of a scenario and its GPU indices, [(scenario, range(16)), ...]"
    return job if isinstance(job, PlacedJob) else reject_argument(job, "simulate_jobs", takes)


def _check_jobs(jobs: Sequence[PlacedJob], cluster: Cluster) -> None:
    owner: dict[int, str] = {}
    for job in jobs:
        name = job.scenario.name
        if not 0 <= job.arrives < job.leaves or job.arrives == math.inf:
            rule = "a job arrives at 0 s or later, and leaves after that"
            raise InputError(f"job {name!r} arrives at {job.arrives:g} s and leaves at {job.leaves:g} s; {rule}")
        if len(jobs) == 1 and (job.arrives or not job.stays):
            raise InputError(f"job {name!r}: no other job is there; remove 'arrives' and 'leaves', or add a job")
        if job.scenario.checkpoint is not None:
            raise InputError(f"job {name!r}: checkpoints are not simulated on a shared cluster; remove 'checkpoint'")
        if job.scenario.data is not None and job.scenario.data.loader is not None:
            raise InputError(f"job {name!r}: data loaders are not simulated on a shared cluster; remove data.loader")
        if len(job.gpus) != job.scenario.gpus:
            raise InputError(
                f"job {name!r} has {job.scenario.gpus} ranks but is given {len(job.gpus)} GPUs; give one GPU per rank"
            )
        for gpu in job.gpus:
            if not 0 <= gpu < cluster.num_gpus:
                raise InputError(
                    f"job {name!r}: there is no GPU {gpu}; the cluster has GPUs 0 to {cluster.num_gpus - 1}"
                )
            if gpu in owner:
                raise InputError(
                    f"GPU {cluster.gpus[gpu]} is given to jobs {owner[gpu]!r} and {name!r}; a GPU runs one job only: "
                    f"give each job different GPUs or nodes"
                )
            owner[gpu] = name
    choices = [collective_options(job.scenario) for job in jobs]
    if len({(each.methods.cache_key, each.hop_by_hop, each.interference) for each in choices}) > 1:
        raise InputError(
            "jobs that run together must have equal settings for collectives; give all jobs the same section "
            "'collectives' and the same overlap.interference"
        )
    if any(each.hop_by_hop for each in choices):
        raise InputError(
            "jobs that run together are simulated with collectives as flows; remove collectives.detail: steps"
        )


class _JobSimulator:
    """Simulator of any subset of the jobs on one cluster; each job's link faults affect all jobs."""

    def __init__(self, jobs: Sequence[PlacedJob], cluster: Cluster, *, folded: bool) -> None:
        self._faults = [(to_cluster_numbers(job.scenario.faults, job.gpus, cluster), job.scenario.seed) for job in jobs]
        links = [fault for faults, _ in self._faults for fault in faults]
        self._cluster, self._folded = link_capacities.apply_permanent_faults(links, cluster, 0), folded  # none is drawn

    def __call__(self, jobs: Sequence[PlacedJob], steps: Sequence[int]) -> list[Result]:
        """Simulate these jobs together; ``steps`` gives the number of steps of each job."""
        return simulate_on_exact_grid(lambda: self._simulate(jobs, steps))

    def _simulate(self, jobs: Sequence[PlacedJob], steps: Sequence[int]) -> list[Result]:
        cluster = self._cluster
        scenarios = [job.scenario.model_copy(update={"steps": count}) for job, count in zip(jobs, steps, strict=True)]
        planned, disturbed, slow = [], [], list[float]()
        for scenario, gpus in zip(scenarios, (job.gpus for job in jobs), strict=True):
            own = scenario.cluster  # a scenario scales its GPU
            device = own.device if own.built.device == cluster.device else load_device(cluster.device)
            job, facts = plan_job(scenario, device)
            hosts, fabric = link_capacities.node_numbers_of_ranks(gpus, cluster), PlacedFabric(cluster, gpus)
            setting = fault_context(scenario, job.plan, hosts, fabric, cluster.wiring.link_capacity)
            planned.append((job, facts))
            disturbed.append(rank_disturbances(scenario.faults, job.plan, setting))
            slow += permanent_slowdowns(scenario.faults, hosts, scenario.seed)
        plan = JointParallelPlan(tuple(job.plan for job, _ in planned))
        fabric = PlacedFabric(cluster, tuple(gpu for job in jobs for gpu in job.gpus))
        choices, capacity = collective_options(scenarios[0]), cluster.link_capacity
        built = [
            delay_programs(build_stage_programs(each), job.arrives)
            for (each, _), job in zip(planned, jobs, strict=True)
        ]
        programs = join_programs(built, plan)
        disturbances = join_disturbances(disturbed, plan, joint_capacity_profiles(self._faults, cluster))
        symmetry = SymmetryFinder(programs, plan, fabric, choices.methods)
        equal = self._folded and is_foldable(*scenarios)
        folding = symmetry.fold_job(capacity, slow, disturbances) if equal else symmetry.trivial_folding(len(capacity))
        tables = tabulate_job(
            programs, plan, fabric, capacity, folding,
            slowness=slow, disturbances=disturbances, interference=choices.interference,
        )  # fmt: skip
        record, rates = simulate_job(tables), tables.tables.capacity.tolist()
        return [
            Result(
                record=record, folding=folding, capacity=rates, hop_by_hop=False, steps=scenario.steps, ranks=ranks,
                scenario=scenario, job=job, facts=facts,
            )
            for scenario, ranks, (job, facts) in zip(scenarios, plan.rank_ranges, planned, strict=True)
        ]  # fmt: skip


# --- the file of ``simcluster share`` ---------------------------------------------------------------------------------


class SharedJobSpec(Spec):
    """One job in the file of ``simcluster share``: a scenario, and the nodes of the shared cluster for the job.

    The scenario's ``cluster`` section is ignored. ``machines`` lists the nodes whose GPUs it takes; by default it takes
    the next free GPUs, as many as its ``gpus`` (or ``set``) names, or all that are free. It ``arrives`` (default:
    at the start) and ``leaves`` (default: it stays) at times since the start of all jobs.
    """

    scenario: str
    machines: tuple[Annotated[int, Field(strict=True, ge=0)], ...] | None = None
    set: dict[str, Any] = Field(default_factory=dict)
    arrives: NamedSeconds = 0.0
    leaves: NamedSeconds | None = None


def _expand_topology_name(cluster: object) -> object:
    return {"topology": cluster} if isinstance(cluster, str) else cluster


class SharedClusterSpec(Spec):
    """The file of ``simcluster share``: a cluster, and the list of jobs that share it."""

    name: Annotated[str, AfterValidator(escape_line_breaks)] = "jobs"
    cluster: Annotated[dict[str, Any], BeforeValidator(_expand_topology_name)]
    jobs: Annotated[tuple[SharedJobSpec, ...], Field(min_length=1)]


def load_jobs(
    path: str | Path, overrides: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()
) -> tuple[list[PlacedJob], Cluster]:
    """Read the file of ``simcluster share``; return its jobs with their GPUs, and the cluster.

    Paths in the file are relative to it. ``overrides`` change the file's document. Raises InputError that names the
    file, the job and the problem.
    """
    document = apply_overrides(read_document(Path(path)), overrides)
    spec = validate_document(SharedClusterSpec, document)
    shared, topology = spec.cluster, spec.cluster.get("topology")
    if isinstance(topology, str) and (document.folder / topology).exists():
        shared = {**shared, "topology": str((document.folder / topology).resolve())}
    found = resolve_scenario(replace(document, data={"cluster": shared}, marks={}))
    try:
        cluster = validate_document(ClusterSpec, replace(found, data=found.data["cluster"])).built
    except InputError as problem:
        raise document.error_at(("cluster",), str(problem)) from None
    placed: list[PlacedJob] = []
    taken: dict[int, None] = {}
    for number, job in enumerate(spec.jobs):
        try:
            there, relative = _available_gpus(job, cluster, taken), document.folder / job.scenario
            name = str(relative) if relative.exists() else job.scenario
            sized = not there or "gpus" in job.set or "gpus" in read_document(find_scenario_file(name)).data
            size = () if sized else (("gpus", len(there)),)
            scenario = BaseScenario(name).with_changes((("cluster", shared), *size, *job.set.items()))
            gpus = _choose_gpus(job, scenario, cluster, there)
        except InputError as problem:
            raise document.error_at(("jobs", number), str(problem)) from None
        taken |= dict.fromkeys(gpus)
        placed.append(PlacedJob(scenario, gpus, job.arrives, math.inf if job.leaves is None else job.leaves))
    return placed, cluster


def _available_gpus(job: SharedJobSpec, cluster: Cluster, taken: Mapping[int, None]) -> list[int]:
    if job.machines is None:
        return [gpu for gpu in range(cluster.num_gpus) if gpu not in taken]
    missing = [machine for machine in job.machines if machine not in cluster.host_of]
    if missing:
        raise InputError(
            f"the cluster has no node {missing[0]}; its nodes are 0 to {max(cluster.host_of)}: use some of these"
        )
    return [gpu for machine in job.machines for gpu, host in enumerate(cluster.host_of) if host == machine]


def _choose_gpus(job: SharedJobSpec, scenario: Scenario, cluster: Cluster, gpus: Sequence[int]) -> tuple[int, ...]:
    if job.machines is None:
        if len(gpus) < scenario.gpus:
            raise InputError(
                f"job {scenario.name!r} needs {scenario.gpus} GPUs but only {len(gpus)} of the cluster's "
                f"{cluster.num_gpus} are free; use a larger cluster, or set 'gpus'"
            )
        return tuple(gpus[: scenario.gpus])
    if len(gpus) != scenario.gpus:
        raise InputError(
            f"job {scenario.name!r} has {scenario.gpus} ranks, but its nodes {list(job.machines)} have {len(gpus)} "
            "GPUs; list as many nodes in 'machines' as the job needs, or change 'gpus' under 'set'"
        )
    return tuple(gpus)
