"""A planned step, simulated by the engine that the scenario names or that suits its number of ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simcluster.base.clock import on_fitting_grid
from simcluster.base.effort import in_words, require_begun
from simcluster.engine.job_record import simulate_job
from simcluster.faults.where import OnLinks
from simcluster.planning.footprint import Facts
from simcluster.reference.record import Record
from simcluster.reference.recording import simulate_programs
from simcluster.scenario.effort import estimated_seconds, expected_changes
from simcluster.scenario.job import interference_of, methods_of, slowness
from simcluster.scenario.scenario import Scenario
from simcluster.step.deadlock import explain_deadlocks
from simcluster.step.engine_choice import ChosenEngine, choose_engine, count_ops, ops_of
from simcluster.step.fold_check import check_folding
from simcluster.step.folded_groups import FoldedGroups
from simcluster.step.planned import FoldedStep, Planned, facts_of_step, fold, tabulate_step
from simcluster.step.reference_step import simulate_every_rank
from simcluster.symmetry.folding import Folding


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
    watched: Sequence[OnLinks],
    single: bool,
) -> SimulatedStep:
    """Simulate a planned step on the finest grid that its times are exact on: see ``fold``.

    ``single`` is passed to ``choose_engine``.
    """

    def simulated() -> SimulatedStep:
        step = fold(scenario, planned, folded=folded, watched=watched)
        classes = step.folding.classes
        if folded:
            _require_begun(scenario, len(classes.rank_representatives))
        stages = step.folding.communicators.stage_of[list(classes.rank_representatives)]
        ops = count_ops(planned.programs, stages) + int(expected_changes(scenario))
        choice = choose_engine(scenario.engine, ops, in_steps=planned.choices.steps, single=single)
        with explain_deadlocks(scenario, planned, step):
            if choice.engine == "compiled":
                record = simulate_job(tabulate_step(scenario, planned, step), choice.why)
            else:
                record = _by_reference(scenario, planned, step, choice)
            if single and folded:
                step, record = check_folding(scenario, planned, step, record)
        classes = step.folding.classes
        capacity = step.cluster.link_capacity.of(np.array(classes.link_representatives, dtype=np.int64)).tolist()
        hop_by_hop = planned.choices.steps and any(
            op.work.axis and op.work.moves for program in planned.programs for op in ops_of(program)
        )
        return SimulatedStep(record, step.folding, capacity, hop_by_hop, facts_of_step(scenario, planned))

    return on_fitting_grid(simulated)


def _require_begun(scenario: Scenario, unlike: int) -> None:
    """InputError if so many ranks that differ take longer than is begun unasked; the loader has counted one a stage.

    Only a step that is folded shows which ranks the network makes different, as one that is oversubscribed does.
    """
    if unlike <= scenario.parallel.pp or scenario.engine == "reference":
        return
    seconds = estimated_seconds(scenario, unlike=unlike)
    require_begun(
        seconds,
        f"cluster: {unlike:,} of its {scenario.gpus:,} ranks differ by their place in the network or by what is "
        f"wrong with them and are simulated separately, which would take about {in_words(seconds)}",
        "use fewer ranks, or machines under one switch",
    )


def _by_reference(scenario: Scenario, planned: Planned, step: FoldedStep, choice: ChosenEngine) -> Record:
    """Simulate a step by SimPy: every rank where the scenario asks for the reference or nothing can be folded."""
    job, programs, cluster, disturbances = planned.job, planned.programs, step.cluster, step.disturbances
    if choice.engine == "reference" or planned.choices.steps:
        return simulate_every_rank(scenario, job, programs, cluster, *choice)
    interference = interference_of(scenario, scenario.cluster.device)
    return simulate_programs(
        programs,
        cluster,
        FoldedGroups(job.plan, cluster, methods_of(scenario), interference, step.folding),
        slowness(scenario),
        replace(disturbances, capacities=disturbances.capacities_of(step.folding.classes.link_representatives)),
        in_steps=False,
        engine="simpy",
        why=choice.why,
    )
