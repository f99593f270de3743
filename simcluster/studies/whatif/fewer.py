"""A job that goes on with fewer replicas: which leave, where the others run, and how long their step takes.

Whose machine has failed leaves the job with all of its ranks; its other machines stand idle and take the place of the
next that fails.  Other ranks stay where they are: moved up into the gap they would leave the pods that they fill, which
is 0.6 % of Llama 3 405B's step on 16,384 GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Bools, Ints
from simcluster.base.clock import on_fitting_grid
from simcluster.engine.job_record import simulate_job
from simcluster.engine.tabulate import tabulate
from simcluster.planning.jobs import PlacedFabric
from simcluster.reference.record import Record
from simcluster.scenario.job import slowness
from simcluster.scenario.loading import without_loader
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.schedule_plan import plan_of, schedule_of
from simcluster.schedules import schedules_with
from simcluster.step.loading import loading_of
from simcluster.step.planned import choices_of, plan
from simcluster.step.simulate import replay
from simcluster.studies.multi_job import Placed, simulate_together
from simcluster.symmetry.folding import Symmetry


class FewerReplicas(NamedTuple):
    """A job without some of its replicas; its ranks run on ``gpus``, or (None) on the cluster's first ones."""

    scenario: Scenario
    gpus: tuple[int, ...] | None


def fewer_of(scenario: Scenario, machines: int) -> FewerReplicas | None:
    """The job with so many machines too few, its first replicas being those that leave; None if none is left.

    It goes on with as many replicas as there are machines for.  Where machines have ranks of several replicas that are
    not all on the same ones, ranks move up into the gap (``without_machine``).
    """
    hosts = scenario.cluster.built.hosts[: scenario.gpus]
    each = len(hosts) // len(np.unique(hosts))
    replica = scenario.gpus // scenario.dp
    left = min(scenario.dp - 1, (scenario.gpus - machines * each) // replica)
    if left < 1:
        return None
    kept = _whole(scenario, hosts, left)
    if kept is None or choices_of(scenario).steps:
        moved: Scenario | None = scenario
        while moved is not None and moved.dp > left:
            moved, _ = without_machine(moved, int(hosts[0]))
        return None if moved is None else FewerReplicas(moved, None)
    gpus = np.sort(kept.ravel()).tolist()  # in the order of their ranks in the smaller job as well
    return FewerReplicas(with_ranks(scenario, left, gpus), tuple(gpus))


def dropped(scenario: Scenario, machine: int) -> tuple[FewerReplicas | None, str]:
    """The job without a machine and the replicas that have ranks on it, and what is to be said of that.

    The others stay where they are, as in ``fewer_of``, where nothing is wrong with them; else ranks move up
    (``without_machine``).  None for a job of a single replica.
    """
    moved, note = without_machine(scenario, machine)
    if moved is None:
        return None, note
    if choices_of(scenario).steps:
        return FewerReplicas(moved, None), note
    hosts = scenario.cluster.built.hosts[: scenario.gpus]
    grid = plan_of(scenario, schedule_of(scenario)).grid
    gone = (hosts[grid] == machine).any(axis=tuple(axis for axis in range(grid.ndim) if axis != 1))
    kept = _apart(grid, hosts, gone)
    if kept is None or kept.shape[1] != moved.dp:
        return FewerReplicas(moved, None), note
    gpus = np.sort(kept.ravel()).tolist()
    stays = with_ranks(scenario, moved.dp, gpus)
    return FewerReplicas(moved, None) if stays.faults else FewerReplicas(stays, tuple(gpus)), note


def _whole(scenario: Scenario, hosts: Ints, left: int) -> Ints | None:
    """The ranks of the last ``left`` replicas, as in a plan's grid, if those share no machine with others."""
    grid = plan_of(scenario, schedule_of(scenario)).grid
    return _apart(grid, hosts, np.arange(grid.shape[1]) < grid.shape[1] - left)


def _apart(grid: Ints, hosts: Ints, gone: Bools) -> Ints | None:
    """The ranks of the replicas that are not ``gone``, if they share no machine with those that are."""
    kept = grid[:, ~gone]
    return None if np.isin(hosts[kept], hosts[grid[:, gone]]).any() else kept


def step_of(job: FewerReplicas) -> float:
    """Return the seconds of its step."""
    scenario, gpus = job
    if gpus is None:
        return replay(scenario).step_time
    if scenario.data and scenario.data.loader:
        alone = step_of(FewerReplicas(without_loader(scenario), gpus))
        loading = loading_of(scenario, alone)
        return alone + (loading.exposed if loading else 0.0)
    if scenario.faults:
        return simulate_together([Placed(scenario, gpus)], scenario.cluster.built)[0].step_time
    planned, cluster = plan(scenario), scenario.cluster.built
    fabric, choices, slow = PlacedFabric(cluster, gpus), planned.choices, slowness(scenario)
    symmetry = Symmetry(planned.programs, planned.job.plan, fabric, choices.methods)
    folding = symmetry.folding(cluster.link_capacity, slow)

    def simulated() -> Record:
        job = tabulate(
            planned.programs, planned.job.plan, fabric, cluster.link_capacity, folding,
            slowness=slow, interference=choices.interference,
        )  # fmt: skip
        return simulate_job(job, keeps_times=False)

    return float(on_fitting_grid(simulated).lane_end.max()) / scenario.steps


def without_machine(scenario: Scenario, machine: int) -> tuple[Scenario | None, str]:
    """The same job with a replica less and without the machine, and what is to be said of its batch and idle GPUs.

    Ranks move up into the gap (``with_ranks``).  None for a job of a single replica.
    """
    hosts = scenario.cluster.built.host_of[: scenario.gpus]
    replica = scenario.gpus // scenario.dp
    kept = [rank for rank in range(scenario.gpus) if hosts[rank] != machine]
    dp = min(scenario.dp - 1, len(kept) // replica)
    if dp < 1:
        return None, "the job has a single replica"
    changed = with_ranks(scenario, dp, kept[: dp * replica])
    batch, notes = changed.training.global_batch, []
    if batch != scenario.training.global_batch:
        notes.append(f"global batch {batch:,}, as {scenario.training.global_batch:,} does not divide")
    if len(kept) > changed.gpus:
        notes.append(f"{len(kept) - changed.gpus:,} healthy GPUs idle")
    return changed, "; ".join(notes)


def with_ranks(scenario: Scenario, dp: int, kept: Sequence[int]) -> Scenario:
    """The same job with so many replicas, of whose ranks those that are ``kept`` are left, in this order.

    The global batch stays where the replicas can share it, else it is the nearest smaller one that they can.  What is
    wrong with a rank goes where that rank goes.
    """
    hosts = scenario.cluster.built.host_of[: scenario.gpus]
    parallel, training = scenario.parallel, scenario.training
    together = dp * training.micro_batch
    if scenario.pipeline.schedule in schedules_with("in_groups"):
        together *= parallel.pp
    batch = training.global_batch // together * together or together
    place = {rank: number for number, rank in enumerate(kept)}
    moved = [fault.moved(hosts, place) for fault in scenario.faults]
    return scenario.model_copy(
        update={
            "gpus": len(kept),
            "parallel": parallel.model_copy(update={"dp": dp}),
            "training": training.model_copy(update={"global_batch": batch}),
            "faults": tuple(fault for fault in moved if fault is not None),
        }
    )
