"""A prepared step, played: as the scenario's engine says, with what can be done where its ops wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np

from simcluster.base.clock import on_fitting_grid
from simcluster.base.effort import in_words, require_begun
from simcluster.base.errors import DeadlockError
from simcluster.engine.bridge import record_of
from simcluster.engine.choose import play_by
from simcluster.engine.communication import StepsOf
from simcluster.engine.network import Network
from simcluster.engine.stepwise import Stepwise
from simcluster.faults.where import OnLinks
from simcluster.planning.footprint import Facts
from simcluster.reference.record import Record
from simcluster.scenario.effort import estimated_seconds
from simcluster.scenario.scenario import Scenario
from simcluster.step.engine_choice import ChosenEngine, choose_engine, count_ops, ops_of
from simcluster.step.planned import FoldedStep, Planned, PreparedStep, facts_of_step, fold, lower_step
from simcluster.step.reference_step import simulate_every_rank
from simcluster.step.simpy_step import simulate_representatives
from simcluster.symmetry.folding import Folding
from simcluster.symmetry.optimistic import OptimisticFold
from simcluster.topology import Cluster


class SimulatedStep(NamedTuple):
    """The record of a step, the classes of ranks and links that it is of, with B/s per class of links, and what is
    known of the job; ``hop_by_hop``: collectives went round by round."""

    record: Record
    folding: Folding
    capacity: Sequence[float]
    hop_by_hop: bool
    facts: Facts


def simulate_step(
    scenario: Scenario,
    planned: Planned,
    *,
    folded: bool,
    collapsed: bool,
    watched: Sequence[OnLinks],
    trust: OptimisticFold | None,
    simpy_seconds: float,
) -> SimulatedStep:
    """Simulate a planned step on the finest grid that its times are exact on: see ``prepare``.

    ``simpy_seconds`` is how long SimPy may take where the scenario names no engine.
    """

    def simulated() -> SimulatedStep:
        step = fold(scenario, planned, folded=folded, watched=watched, trust=trust)
        classes = step.folding.classes
        if folded:
            _require_begun(scenario, len(classes.rank_representatives))
        stages = step.folding.communicators.stage_of[list(classes.rank_representatives)]
        ops = count_ops(planned.programs, stages.tolist())
        choice = choose_engine(scenario.engine, ops, in_steps=planned.choices.steps, within=simpy_seconds)
        with naming_rendezvous(scenario, planned):
            if choice.engine == "compiled":
                record = _by_events(lower_step(scenario, planned, step, collapsed=collapsed))
            else:
                record = _by_reference(scenario, planned, step, choice)
        capacity = step.cluster.link_capacity.of(np.array(classes.link_representatives, dtype=np.int64)).tolist()
        hop_by_hop = planned.choices.steps and any(
            op.work.axis and op.work.moves for program in planned.programs for op in ops_of(program)
        )
        return SimulatedStep(record, step.folding, capacity, hop_by_hop, facts_of_step(scenario, planned))

    return on_fitting_grid(simulated)


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


def _by_events(prepared: PreparedStep) -> Record:
    """Simulate a prepared step by events, or as one longest path where that is exact."""
    lowered = prepared.lowered
    steps = [partial(_stepwise, prepared.cluster, steps) for steps in lowered.steps]
    return record_of(lowered, play_by("auto", lowered.played, lowered.capacity, steps))


@contextmanager
def naming_rendezvous(scenario: Scenario, planned: Planned) -> Iterator[None]:
    """Explain a deadlock of blocking sends."""
    try:
        yield
    except DeadlockError as error:
        if scenario.pipeline.p2p == "async":
            raise
        raise DeadlockError(
            f"{error}\n  The order of {planned.job.schedule.name} does not work in blocking pairs (pipeline.p2p: "
            f"rendezvous): a send waits for a receive that comes later; use pipeline.p2p: async, or another schedule"
        ) from None


def _by_reference(scenario: Scenario, planned: Planned, step: FoldedStep, choice: ChosenEngine) -> Record:
    """Simulate a step by SimPy: every rank where the scenario asks for the reference or nothing can be folded."""
    job, programs, cluster = planned.job, planned.programs, step.cluster
    if choice.engine == "reference" or planned.choices.steps:
        return simulate_every_rank(scenario, job, programs, cluster, *choice)
    return simulate_representatives(scenario, job, programs, cluster, step.folding, step.disturbances, choice.why)


def _stepwise(cluster: Cluster, steps: StepsOf, network: Network, on_done: Callable[[int], object]) -> Stepwise:
    return Stepwise(network, cluster, steps.gpus, steps.phases, steps.size, on_done, steps.pace)
