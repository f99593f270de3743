"""A job that goes on with fewer replicas: which leave, where the others run, and how long their step takes.

Whose machine has failed leaves the job with all of its ranks; its other machines stand idle and take the place of the
next that fails.  Other ranks stay where they are: moved up into the gap they would leave the pods that they fill, which
is 0.6 % of Llama 3 405B's step on 16,384 GPUs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.engine.choose import play_by
from simcluster.engine.contention_check import crowded
from simcluster.engine.lower import lower
from simcluster.planning.jobs import PlacedFabric
from simcluster.results.result import Result
from simcluster.scenario.job import slowness
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.schedule_plan import plan_of, schedule_of
from simcluster.simulate import replay
from simcluster.step.loading import loading_of, without_loader
from simcluster.step.planned import choices_of, plan, where_proved
from simcluster.studies.multi_job import Placed, simulate_together
from simcluster.studies.whatif.mitigations import with_ranks, without_machine
from simcluster.symmetry.folding import Symmetry
from simcluster.symmetry.optimistic import OptimisticFold


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


def _whole(scenario: Scenario, hosts: Ints, left: int) -> Ints | None:
    """The ranks of the last ``left`` replicas, as in a plan's grid, if those share no machine with others."""
    grid = plan_of(scenario, schedule_of(scenario)).grid
    kept, gone = grid[:, len(grid[0]) - left :], grid[:, : len(grid[0]) - left]
    return None if np.isin(hosts[kept], hosts[gone]).any() else kept


def step_of(job: FewerReplicas) -> float:
    """Seconds of its step; without faults played by as few ranks as give the same times (``symmetry.optimistic``)."""
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
    fabric, choices = PlacedFabric(cluster, gpus), where_proved(planned.choices, [scenario])
    symmetry, trust = Symmetry(planned.programs, planned.job.plan, fabric, choices.methods), OptimisticFold()
    while True:
        lowered = lower(
            planned.programs,
            planned.job.plan,
            fabric,
            cluster.capacity,
            slowness=slowness(scenario),
            choices=choices,
            trust=trust,
            symmetry=symmetry,
        )
        record = play_by("auto", lowered.played, lowered.capacity)
        if trust.settled or not trust.learn(crowded(lowered, record)):
            return Result(
                lowered=lowered,
                record=record,
                steps=scenario.steps,
                ranks=range(scenario.gpus),
                scenario=scenario,
                job=planned.job,
                facts=planned.facts,
            ).step_time
