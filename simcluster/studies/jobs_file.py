"""The file of ``simcluster share``: a cluster, the jobs on it, and which machines each has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from simcluster.base.errors import InputError
from simcluster.base.printable import one_line
from simcluster.documents.overrides import apply_overrides
from simcluster.documents.reading import Document, read_document, validate
from simcluster.documents.spec import Spec
from simcluster.scenario.fields import ClusterSpec
from simcluster.scenario.files import resolve
from simcluster.scenario.scenario import Base, Scenario, scenario_path
from simcluster.studies.multi_job import Placed
from simcluster.topology import Cluster


class JobSpec(Spec):
    """A scenario that runs on part of the cluster: its own ``cluster`` section does not count.

    ``machines`` lists the machines that it takes, all their GPUs; left out, it takes the next free GPUs, as many as its
    ``gpus`` (or ``set``) says, or all that are left.
    """

    scenario: str
    machines: tuple[Annotated[int, Field(strict=True, ge=0)], ...] | None = None
    set: dict[str, Any] = Field(default_factory=dict)


def _by_name(cluster: object) -> object:
    """A topology by its name or path alone, as in a scenario."""
    return {"topology": cluster} if isinstance(cluster, str) else cluster


class JobsSpec(Spec):
    """Jobs that share a cluster."""

    name: Annotated[str, AfterValidator(one_line)] = "jobs"
    cluster: Annotated[dict[str, Any], BeforeValidator(_by_name)]
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
    cluster = _built(document, shared)
    for number, job in enumerate(spec.jobs):
        try:
            _check_machines(job, cluster)
            name = _beside(document, job.scenario)
            scenario = Base(name).scenario((("cluster", shared), *_size(job, name, cluster, taken), *job.set.items()))
            gpus = _gpus(job, scenario, cluster, taken)
        except InputError as problem:
            raise document.error(("jobs", number), str(problem)) from None
        taken |= dict.fromkeys(gpus)
        placed.append(Placed(scenario, gpus))
    return placed, cluster


def _built(document: Document, shared: dict[str, Any]) -> Cluster:
    """The cluster that the jobs share."""
    found = resolve(replace(document, data={"cluster": shared}, marks={}))
    try:
        return validate(ClusterSpec, replace(found, data=found.data["cluster"])).built
    except InputError as problem:
        raise document.error(("cluster",), str(problem)) from None


def _check_machines(job: JobSpec, cluster: Cluster) -> None:
    missing = [machine for machine in job.machines or () if machine not in cluster.host_of]
    if missing:
        raise InputError(f"the cluster has no machine {missing[0]}; name some of 0 to {max(cluster.host_of)}")


def _size(job: JobSpec, name: str, cluster: Cluster, taken: dict[int, None]) -> list[tuple[str, int]]:
    """How many GPUs a job has that does not say so itself: those of its machines, or all that are left."""
    if "gpus" in job.set or "gpus" in read_document(scenario_path(name)).data:
        return []
    if job.machines is None:
        count = cluster.num_gpus - len(taken)
    else:
        count = sum(host in job.machines for host in cluster.host_of)
    return [("gpus", count)] if count else []


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
