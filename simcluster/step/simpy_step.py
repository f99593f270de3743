"""A planned step simulated by the reference on one rank of each class of equal ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simcluster.planning.job import Job
from simcluster.planning.ops import StageProgram
from simcluster.planning.perturbations import Disturbances
from simcluster.reference.record import Record
from simcluster.reference.recording import simulate_programs
from simcluster.scenario.job import interference_of, methods_of, slowness
from simcluster.scenario.scenario import Scenario
from simcluster.step.folded_groups import FoldedGroups
from simcluster.symmetry.folding import Folding
from simcluster.topology import Cluster


def simulate_representatives(
    scenario: Scenario,
    job: Job,
    programs: Sequence[StageProgram],
    cluster: Cluster,
    folding: Folding,
    disturbances: Disturbances,
    why: str,
) -> Record:
    """Simulate the stages' programs of a scenario's job, whose collectives are flows, on a cluster with its permanent
    faults.

    Raises DeadlockError when ops are left that can never begin.
    """
    interference = interference_of(scenario, scenario.cluster.device)
    return simulate_programs(
        programs,
        cluster,
        FoldedGroups(job.plan, cluster, methods_of(scenario), interference, folding),
        slowness(scenario),
        replace(disturbances, capacities=disturbances.capacities_of(folding.classes.link_representatives)),
        in_steps=False,
        engine="simpy",
        why=why,
    )
