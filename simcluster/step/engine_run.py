"""Simulation of a planned step by the engine that the scenario names, or by the fastest suitable engine.

Where that is cheap, every rank is compared with its representative. A deadlock is explained.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Literal, NamedTuple, assert_never

import numpy as np

from simcluster.base.arrays import Ints, Numbers
from simcluster.base.clock import Profile, first_nonzero_time, simulate_on_exact_grid
from simcluster.base.compilation import engine_is_compiled
from simcluster.base.errors import DeadlockError
from simcluster.base.progress import check_estimated_time, format_rough_duration, show_note
from simcluster.base.units import format_seconds
from simcluster.engine.job_record import simulate_job
from simcluster.faults.fault_spec import faults_with_effect
from simcluster.planning.footprint import JobFacts
from simcluster.planning.ops import Op, StageProgram
from simcluster.reference.program_simulation import simulate_programs
from simcluster.reference.step_record import StepRecord
from simcluster.scenario import job_conversion
from simcluster.scenario.effort_estimate import count_fault_changes, estimate_simulation_seconds
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.sections import Engine
from simcluster.step.folded_groups import FoldedGroups
from simcluster.step.reference_step import simulate_every_rank
from simcluster.step.step_plan import FoldedStep, PlannedStep, fold_step, tabulate_step
from simcluster.symmetry.folding import FoldedJob

_MAX_CHANGES = 1_000


@contextmanager
def explain_deadlocks(scenario: Scenario, planned: PlannedStep, step: FoldedStep) -> Iterator[None]:
    """Add the likely cause to deadlock errors in the ``with`` block: a dead link, or sends that block each other."""
    try:
        yield
    except DeadlockError as error:
        found = [*_describe_dead_links(scenario, step), str(error)]
        if scenario.pipeline.p2p == "rendezvous":
            found.append(
                f"  The order of {planned.job.schedule.name} does not work in blocking pairs (pipeline.p2p: "
                "rendezvous): a send waits for a receive that comes later; use pipeline.p2p: async, or another schedule"
            )
        raise DeadlockError("\n".join(found)) from None


def _describe_dead_links(scenario: Scenario, step: FoldedStep) -> Iterator[str]:
    cluster, capacities = step.cluster, step.disturbances.capacities
    faults = {
        f"faults.{scenario.faults.index(fault)} ({fault.kind})": {
            link for link in fault.affected_links(cluster) if fault.remaining_share(float(cluster.capacity[link])) == 0
        }
        for fault in faults_with_effect(scenario.faults, "remaining_share")
    }
    taken = sorted(set[int]().union(*faults.values()))
    for links in [*([link] for link in taken), *([taken] if taken else [])]:
        since = _find_permanent_stop([capacities[link] for link in links])
        if since is None:
            continue
        causes = {name: min(own.intersection(links)) for name, own in faults.items() if own.intersection(links)}
        shown = [" to ".join(cluster.links[link]) for link in dict.fromkeys(causes.values())]
        one, it = f"the link from {shown[0]} stays down from {format_seconds(since)} on", "it"
        if shown[1:]:
            one = f"one of the links from {' and from '.join(shown)} is always down from {format_seconds(since)} on"
            it = "all of them"
        cause, remedy = "leaves it no capacity", "give the fault an end, or let it leave some capacity"
        if len(causes) > 1:
            cause, remedy = "take turns", "let these links be down at the same times, or only one of them"
        yield f"{one}: {' and '.join(causes)} {cause}, and transfers that cross {it} never end; {remedy}"
        return


def _find_permanent_stop(profiles: Sequence[Profile]) -> float | None:
    now = 0.0
    for _ in range(_MAX_CHANGES):
        up = first_nonzero_time(profiles, now)
        if up == math.inf:
            return now
        now = min(profile.next_change(up) for profile in profiles)
        if now == math.inf:
            return None
    return None


SECONDS_PER_OP = 6e-5
"""Seconds of SimPy per op of a simulated rank, on one core in 2026."""
SIMPY_SECONDS = 0.5
"""A step that SimPy simulates within this time needs no faster engine."""


class ChosenEngine(NamedTuple):
    """Name of the engine that simulates a step, and why it was chosen."""

    engine: Literal["simpy", "compiled", "reference"]
    why: str


def choose_engine(requested: Engine, num_ops: int, *, hop_by_hop: bool, single: bool) -> ChosenEngine:
    """Choose the engine that simulates a step, given the number of ops on all simulated ranks.

    ``auto`` takes SimPy for a ``single`` step (``simulate``, ``simcluster run``) where that needs less than
    ``SIMPY_SECONDS``. Studies simulate many steps: they take the compiled engine whatever the size.
    """
    if requested == "simpy" or requested == "compiled" or requested == "reference":
        return ChosenEngine(requested, f"engine: {requested}")
    if requested != "auto":
        assert_never(requested)
    if hop_by_hop:
        return ChosenEngine("compiled", "collectives are simulated round by round")
    if not single:
        return ChosenEngine("compiled", "a study simulates many steps")
    if num_ops * SECONDS_PER_OP > SIMPY_SECONDS:
        return ChosenEngine("compiled", f"SimPy would take more than {SIMPY_SECONDS:g} s for {num_ops:,} ops")
    return ChosenEngine("simpy", f"SimPy takes less than {SIMPY_SECONDS:g} s for {num_ops:,} ops")


def count_ops(programs: Sequence[StageProgram], stages: Numbers) -> int:
    """Return the number of ops on some ranks, given each pipeline stage's program and each rank's stage."""
    items = (chain.from_iterable(program.lanes.values()) for program in programs)
    each = np.array([sum(len(item.segment.ops) for item in own) for own in items])
    return int(each[stages].sum())


def iterate_ops(program: StageProgram) -> Iterator[Op]:
    """Yield all ops in the program of a pipeline stage."""
    return (op for items in program.lanes.values() for item in items for op in item.segment.ops)


class StepOutcome(NamedTuple):
    """A simulated step: recorded op times, equivalent ranks, link capacities, and facts known before simulation.

    ``capacity`` is in B/s per class of links; ``hop_by_hop``: collectives were simulated round by round.
    """

    record: StepRecord
    folding: FoldedJob
    capacity: Sequence[float]
    hop_by_hop: bool
    facts: JobFacts


def simulate_step(scenario: Scenario, planned: PlannedStep, *, folded: bool, single: bool) -> StepOutcome:
    """Simulate a planned step on the finest clock grid on which all its times are exact.

    ``single`` is passed to ``choose_engine``.
    """

    def simulate_once() -> StepOutcome:
        step = fold_step(scenario, planned, folded=folded)
        classes = step.folding.classes
        if folded:
            _check_time_limit(scenario, len(classes.rank_representatives))
        stages = step.folding.communicators.stage_of[list(classes.rank_representatives)]
        ops = count_ops(planned.programs, stages) + int(count_fault_changes(scenario))
        choice = choose_engine(scenario.engine, ops, hop_by_hop=planned.collective_options.hop_by_hop, single=single)
        with explain_deadlocks(scenario, planned, step):
            if choice.engine == "compiled":
                record = simulate_job(tabulate_step(scenario, planned, step), choice.why)
            else:
                record = _simulate_with_simpy(scenario, planned, step, choice)
            if single and folded:
                step, record = check_folding(scenario, planned, step, record)
        classes = step.folding.classes
        capacity = step.cluster.link_capacity.values_at(np.array(classes.link_representatives, dtype=np.int64)).tolist()
        hop_by_hop = planned.collective_options.hop_by_hop and any(
            op.work.axis and op.work.traffic_kind for program in planned.programs for op in iterate_ops(program)
        )
        facts = planned.facts
        if scenario.faults != planned.faults:
            facts = job_conversion.job_facts_with_memory(scenario, scenario.cluster.device, planned.job)
        return StepOutcome(record, step.folding, capacity, hop_by_hop, facts)

    return simulate_on_exact_grid(simulate_once)


def _check_time_limit(scenario: Scenario, separate_ranks: int) -> None:
    if separate_ranks <= scenario.parallel.pp or scenario.engine == "reference":
        return
    seconds = estimate_simulation_seconds(scenario, sim_ranks=separate_ranks)
    check_estimated_time(
        seconds,
        f"cluster: {separate_ranks:,} of {scenario.gpus:,} ranks differ in network position or faults and have to be "
        f"simulated separately, which would take about {format_rough_duration(seconds)}",
        "use fewer ranks, or place all nodes under one switch",
    )


def _simulate_with_simpy(
    scenario: Scenario, planned: PlannedStep, step: FoldedStep, choice: ChosenEngine
) -> StepRecord:
    job, programs, cluster, disturbances = planned.job, planned.programs, step.cluster, step.disturbances
    if disturbances.capacities:
        own = disturbances.capacities_by_position(step.folding.classes.link_representatives)
        disturbances = replace(disturbances, capacities=own)
    if choice.engine == "reference" or planned.collective_options.hop_by_hop:
        return simulate_every_rank(scenario, job, programs, cluster, *choice)
    interference = job_conversion.interference_of(scenario, scenario.cluster.device)
    return simulate_programs(
        programs,
        cluster,
        FoldedGroups(job.plan, cluster, job_conversion.collective_methods(scenario), interference, step.folding),
        job_conversion.rank_slowdowns(scenario),
        disturbances,
        in_steps=False,
        engine="simpy",
        why=choice.why,
    )


CHECKED_OPS = 200_000
"""Maximum number of ops on all ranks for which folding is checked: 0.3 us per op, 0.06 s of the 0.9 s that
``simcluster run`` takes with nothing to simulate.  64 ranks of GPT-3 175B have 1.4 million ops and would take 0.3 s."""


def check_folding(
    scenario: Scenario, planned: PlannedStep, step: FoldedStep, record: StepRecord
) -> tuple[FoldedStep, StepRecord]:
    """Compare a step of representative ranks with a simulation of every rank; return the latter if op times differ.

    The compiled engine simulates every rank. Each must have the op times of its representative, to the bit. An engine
    that is not compiled does not check: it would take 40 times as long.
    """
    communicators, classes = step.folding
    unfolded = len(communicators.stage_of) == len(classes.rank_representatives)
    large = count_ops(planned.programs, communicators.stage_of) > CHECKED_OPS
    if unfolded or large or not engine_is_compiled():
        return step, record
    whole = step._replace(folding=planned.symmetry.trivial_folding(len(step.cluster.link_capacity)))
    tables = tabulate_step(scenario, planned, whole)
    every = simulate_job(tables, "folding would change op times, a bug in simcluster")
    first, class_of = tables.tables.instances.op_first, np.asarray(classes.of_rank)
    ops = _ops_of_representatives(first, class_of, classes.rank_representatives)
    # every rank's ops are ready, begin and end when those of its representative do
    times = zip(record.times[:3], every.times[:3], strict=True)
    if ops is not None and all(np.array_equal(one[ops], other) for one, other in times):
        return step, record
    show_note(
        f"{scenario.name}: ranks simulated as one have different op times (a bug in simcluster); simulating every rank"
    )
    return whole, every


def _ops_of_representatives(first: Numbers, class_of: Ints, representatives: tuple[int, ...]) -> Ints | None:
    counts = np.diff(first)
    own = counts[list(representatives)]
    if not np.array_equal(own[class_of], counts):
        return None
    return np.arange(first[-1]) + np.repeat((np.cumsum(own) - own)[class_of] - first[:-1], counts)
