"""The door: a scenario in, a result out.  The only place where planning, engine and scenario meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from simcluster.collector import collector_off
from simcluster.errors import DeadlockError
from simcluster.faults import Fault
from simcluster.faults.capacities import with_permanent
from simcluster.faults.where import OnLinks
from simcluster.job import choices_of, completed, disturbances_of, facts_of, plan_job, slowness
from simcluster.lowering.between import StepsOf
from simcluster.lowering.lower import Choices, Lowered, lower
from simcluster.lowering.program import Engine
from simcluster.lowering.trusting import Trust
from simcluster.lowering.views import Views
from simcluster.planning.ops import StageProgram
from simcluster.planning.stages import stage_programs
from simcluster.planning.step_plan import Job
from simcluster.reference.communication import Communication
from simcluster.result import Facts, Result
from simcluster.scenario.scenario import Scenario
from simcluster.schedules import Schedule, ScheduleFunction
from simcluster.simulating.by_reference import play_plainly
from simcluster.simulating.network import Network
from simcluster.simulating.players import play_by
from simcluster.simulating.record import Record
from simcluster.simulating.stepwise import Stepwise
from simcluster.topology import Cluster


def simulate(
    scenario: Scenario,
    *,
    schedule: Schedule | ScheduleFunction | None = None,
    folded: bool = True,
    collapsed: bool = True,
    engine: Engine | None = None,
) -> Result:
    """Replay the scenario's steps.

    ``schedule`` takes the place of the scenario's: a Schedule, or a function (stages, microbatches, chunks) that
    returns one; InputError, with the place marked, if it is broken.  ``folded=False`` plays every rank by itself,
    ``collapsed=False`` every op, with the same result to the bit.  ``engine`` takes the place of the scenario's: the
    "reference" is the plain meaning of a step, which all others equal (``simcluster.reference.plain``).  With faults,
    the step is replayed without them as well, once somebody asks for the slowdown.
    """
    if schedule is not None:
        scenario = scenario.with_schedule(schedule)
    if engine is not None:
        scenario = scenario.model_copy(update={"engine": engine})
    planned = plan(scenario)

    def clean() -> float:
        return replay(scenario.without_faults(), folded=folded, collapsed=collapsed, planned=planned).step_time

    without = clean if scenario.faults else None
    return replay(scenario, folded=folded, collapsed=collapsed, clean=without, planned=planned)


Change = Callable[[Sequence[StageProgram]], Sequence[StageProgram]]
"""Makes other programs of a job's: what if some of their ops were different?"""


@dataclass(frozen=True, slots=True)
class Planned:
    """What a scenario's faults do not change: the job, its stages' programs, how its collectives are done, and the
    windows through which it may be looked at; and what is known of the job under its own ``faults``."""

    job: Job
    facts: Facts
    faults: Sequence[Fault]
    programs: Sequence[StageProgram]
    choices: Choices
    views: Views


@dataclass(frozen=True, slots=True)
class Prepared:
    """A scenario's step before the clock starts: the program, what is known of the job, and the cluster with what is
    wrong with it for ever."""

    lowered: Lowered
    facts: Facts
    cluster: Cluster
    schedule: str


@collector_off()
def plan(scenario: Scenario, change: Change = list) -> Planned:
    """Plan the scenario, whatever faults it has."""
    job, facts = plan_job(scenario, scenario.cluster.device)
    programs, choices = change(stage_programs(job)), choices_of(scenario, folded=True)
    views = Views(programs, job.plan, scenario.cluster.built, choices.methods)
    return Planned(job, facts, scenario.faults, programs, choices, views)


def _facts_under(scenario: Scenario, made: Planned) -> Facts:
    """What is known of a planned job with the faults that the scenario has."""
    if scenario.faults == made.faults:
        return made.facts
    return completed(facts_of(scenario, scenario.cluster.device), scenario, made.job)


def prepare(
    scenario: Scenario,
    *,
    folded: bool = True,
    collapsed: bool = True,
    change: Change = list,
    watched: Sequence[OnLinks] = (),
    trust: Trust | None = None,
    planned: Planned | None = None,
) -> Prepared:
    """Plan the scenario, or take it as ``planned``, and lower it to a program, with its programs changed if a change is
    given.

    The links of ``watched`` faults are played apart from others, as if something could happen on them; ``trust`` says
    which links may hold somebody up, of a scenario without faults.
    """
    made = planned or plan(scenario, change)
    cluster = with_permanent(scenario.faults, scenario.cluster.built)
    lowered = lower(
        made.programs,
        made.job.plan,
        cluster,
        cluster.capacity,
        slowness=slowness(scenario),
        choices=replace(made.choices, folded=folded, collapsed=collapsed),
        disturbances=disturbances_of(scenario, made.job.plan, cluster, watched),
        trust=trust,
        views=made.views,
    )
    return Prepared(lowered, _facts_under(scenario, made), cluster, made.job.schedule.name)


@collector_off()
def replay(
    scenario: Scenario,
    *,
    folded: bool = True,
    collapsed: bool = True,
    clean: Callable[[], float] | None = None,
    change: Change = list,
    watched: Sequence[OnLinks] = (),
    trust: Trust | None = None,
    planned: Planned | None = None,
) -> Result:
    """Replay the scenario once, with its programs changed if a change is given, on a trust if one is (``prepare``);
    ``clean`` says how long its step takes without its faults."""
    plainly = scenario.engine == "reference"
    planned = planned or plan(scenario, change)
    made = prepare(
        scenario, folded=folded and not plainly, collapsed=collapsed and not plainly, watched=watched, trust=trust,
        planned=planned,
    )  # fmt: skip
    lowered = made.lowered
    try:
        if plainly:
            record = _by_reference(scenario, planned, made)
        else:
            steps = [partial(_stepwise, made.cluster, steps) for steps in lowered.steps]
            record = play_by(scenario.engine, lowered.played, lowered.capacity, steps)
    except DeadlockError as error:
        if scenario.pipeline.p2p == "async":
            raise
        raise DeadlockError(
            f"{error}\n  The order of {made.schedule} does not work in blocking pairs (pipeline.p2p: rendezvous): "
            f"a send waits for a receive that comes later; use pipeline.p2p: async, or another schedule"
        ) from None
    return Result(
        lowered=lowered,
        record=record,
        steps=scenario.steps,
        ranks=range(made.facts.ranks),
        scenario=scenario,
        facts=made.facts,
        clean=clean,
    )


def _by_reference(scenario: Scenario, planned: Planned, made: Prepared) -> Record:
    """The step as the reference interpreter plays it."""
    choices, layout = planned.choices, planned.job.plan
    return play_plainly(
        made.lowered.program,
        planned.programs,
        layout,
        made.cluster,
        Communication(layout, made.cluster, choices.methods, choices.interference),
        slowness(scenario),
        disturbances_of(scenario, layout, made.cluster),
        in_steps=choices.steps,
    )


def _stepwise(cluster: Cluster, steps: StepsOf, network: Network, on_done: Callable[[int], object]) -> Stepwise:
    return Stepwise(network, cluster, steps.gpus, steps.phases, steps.size, on_done, steps.pace)
