"""Simulation of every rank of a planned step by the reference simulator, without merging equivalent ranks."""

from __future__ import annotations

from collections.abc import Sequence

from simcluster.planning.job import Job
from simcluster.planning.ops import StageProgram
from simcluster.reference.communication import JobCommunication
from simcluster.reference.program_simulation import simulate_programs
from simcluster.reference.step_record import StepRecord
from simcluster.scenario.job_conversion import collective_methods, disturbances_of, interference_of, rank_slowdowns
from simcluster.scenario.scenario import Scenario
from simcluster.topology import Cluster


def simulate_every_rank(
    scenario: Scenario, job: Job, programs: Sequence[StageProgram], cluster: Cluster, engine: str, reason: str
) -> StepRecord:
    """Simulate every rank of a job by the reference simulator, and return the recorded op times.

    Raises DeadlockError when ops are left that can never begin.
    """
    in_steps = scenario.collectives.detail == "steps"
    interference = None if in_steps else interference_of(scenario, scenario.cluster.device)
    return simulate_programs(
        programs,
        cluster,
        JobCommunication(job.plan, cluster, collective_methods(scenario), interference),
        rank_slowdowns(scenario),
        disturbances_of(scenario, job.plan, cluster, saved=job.checkpoint),
        in_steps=in_steps,
        engine=engine,
        why=reason,
    )
