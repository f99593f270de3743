"""A prepared step, played: as the scenario's engine says, with what can be done where its ops wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from simcluster.base.clock import on_fitting_grid
from simcluster.base.effort import in_words, require_begun
from simcluster.base.errors import DeadlockError
from simcluster.engine.by_reference import play_plainly
from simcluster.engine.choose import play_by
from simcluster.engine.communication import StepsOf
from simcluster.engine.network import Network
from simcluster.engine.record import Record
from simcluster.engine.stepwise import Stepwise
from simcluster.faults.where import OnLinks
from simcluster.reference.communication import GroupsAndRoutes
from simcluster.scenario.effort import estimated_seconds
from simcluster.scenario.job import disturbances_of, slowness
from simcluster.scenario.scenario import Scenario
from simcluster.step.planned import Planned, PreparedStep, prepare
from simcluster.symmetry.optimistic import OptimisticFold
from simcluster.topology import Cluster


def prepared_and_played(
    scenario: Scenario,
    planned: Planned,
    *,
    folded: bool,
    collapsed: bool,
    watched: Sequence[OnLinks],
    trust: OptimisticFold | None,
) -> tuple[PreparedStep, Record]:
    """A planned step, made ready and played on the finest grid that its times are exact on: see ``prepare``."""

    def both() -> tuple[PreparedStep, Record]:
        prepared = prepare(scenario, planned, folded=folded, collapsed=collapsed, watched=watched, trust=trust)
        if folded:
            _require_begun(scenario, len(prepared.lowered.classes.rank_representatives))
        return prepared, play(scenario, planned, prepared)

    return on_fitting_grid(both)


def _require_begun(scenario: Scenario, unlike: int) -> None:
    """InputError if so many ranks that differ take longer than is begun unasked; the loader has counted one a stage.

    Only a step that is lowered knows which ranks the network makes different, as one that is oversubscribed does.
    """
    if unlike <= scenario.parallel.pp or scenario.engine == "reference":
        return
    seconds = estimated_seconds(scenario, unlike=unlike)
    require_begun(
        seconds,
        f"cluster: {unlike:,} of its {scenario.gpus:,} ranks differ by their place in the network or by what is "
        f"wrong with them and are played apart, which would take about {in_words(seconds)}",
        "use fewer ranks, or machines under one switch",
    )


def play(scenario: Scenario, planned: Planned, prepared: PreparedStep) -> Record:
    """When the ops of a prepared step begin and end.

    Raises DeadlockError when ops are left that can never begin, and InputError for an engine that would not be exact.
    """
    try:
        if scenario.engine == "reference":
            return _by_reference(scenario, planned, prepared)
        lowered = prepared.lowered
        steps = [partial(_stepwise, prepared.cluster, steps) for steps in lowered.steps]
        return play_by(scenario.engine, lowered.played, lowered.capacity, steps)
    except DeadlockError as error:
        if scenario.pipeline.p2p == "async":
            raise
        raise DeadlockError(
            f"{error}\n  The order of {planned.job.schedule.name} does not work in blocking pairs (pipeline.p2p: "
            f"rendezvous): a send waits for a receive that comes later; use pipeline.p2p: async, or another schedule"
        ) from None


def _by_reference(scenario: Scenario, planned: Planned, prepared: PreparedStep) -> Record:
    """The step as the reference interpreter plays it."""
    choices, layout, cluster = planned.choices, planned.job.plan, prepared.cluster
    return play_plainly(
        prepared.lowered.program,
        planned.programs,
        layout,
        cluster,
        GroupsAndRoutes(layout, cluster, choices.methods, choices.interference),
        slowness(scenario),
        disturbances_of(scenario, layout, cluster, saved=planned.job.saved),
        in_steps=choices.steps,
    )


def _stepwise(cluster: Cluster, steps: StepsOf, network: Network, on_done: Callable[[int], object]) -> Stepwise:
    return Stepwise(network, cluster, steps.gpus, steps.phases, steps.size, on_done, steps.pace)
