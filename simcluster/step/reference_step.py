"""Simulation of every rank of a planned step by the reference simulator."""

from __future__ import annotations

from collections.abc import Sequence

from simcluster.planning.job import Job
from simcluster.planning.ops import StageProgram
from simcluster.reference.communication import GroupsAndRoutes
from simcluster.reference.record import Record
from simcluster.reference.recording import simulate_programs
from simcluster.scenario.job import collective_methods, disturbances_of, interference_of, rank_slowdowns
from simcluster.scenario.scenario import Scenario
from simcluster.topology import Cluster


def simulate_every_rank(
    scenario: Scenario, job: Job, programs: Sequence[StageProgram], cluster: Cluster, engine: str, why: str
) -> Record:
    """Simulate every rank of a planned job by the reference simulator and return the step's record.

    Raises DeadlockError when ops are left that can never begin.
    """
    in_steps = scenario.collectives.detail == "steps"
    interference = None if in_steps else interference_of(scenario, scenario.cluster.device)
    return simulate_programs(
        programs,
        cluster,
        GroupsAndRoutes(job.plan, cluster, collective_methods(scenario), interference),
        rank_slowdowns(scenario),
        disturbances_of(scenario, job.plan, cluster, saved=job.saved),
        in_steps=in_steps,
        engine=engine,
        why=why,
    )
