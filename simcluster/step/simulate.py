"""Entry point of simulation, which takes a scenario and returns a result.

A step is planned (``step.step_plan.plan_step``: the job and the ops of its stages), folded (which ranks are equal, with
its faults), simulated (``step.engine_run``: when each op begins and ends), and measured on demand (``Result``).
"""

from __future__ import annotations

from typing import Any

from simcluster.base.clock import round_to_tick
from simcluster.base.gc_pause import pause_gc
from simcluster.base.progress import report_step_start
from simcluster.documents.argument_types import check_arguments
from simcluster.documents.overrides import Changes, list_overrides
from simcluster.reference.data_loader import simulate_batch_delays
from simcluster.results.result import Result
from simcluster.scenario.data_wait import LoaderEffect, tokens_per_host, without_loader
from simcluster.scenario.scenario import Scenario, keywords_to_changes
from simcluster.scenario.scenario_arguments import ScenarioLike, to_scenario
from simcluster.scenario.sections import Engine
from simcluster.schedules import Schedule, ScheduleFunction
from simcluster.step.engine_run import simulate_step
from simcluster.step.step_plan import EditPrograms, PlannedStep, plan_step

WARMUP_STEPS = 100
"""Steps that the data loader runs before the simulated ones."""


def simulate_loading(scenario: Scenario, step: float) -> LoaderEffect | None:
    """Simulate the data loader for steps of this duration (s) and return its delays; None without a data loader."""
    loader = scenario.data.loader if scenario.data else None
    if loader is None:
        return None
    hosts, tokens = tokens_per_host(scenario)
    alike = not loader.is_random and len(set(tokens.tolist())) == 1
    takes = loader.load_times(tokens[:1] if alike else tokens, WARMUP_STEPS + scenario.steps, scenario.seed)
    found = simulate_batch_delays(takes, loader.workers, loader.prefetch, step)[:, WARMUP_STEPS:]
    late = tuple(tuple(round_to_tick(seconds) for seconds in own) for own in found.tolist())
    slowest = loader.batch_seconds(float(tokens.max()))
    return LoaderEffect(step, slowest, loader.workers, loader.prefetch > 0, late * len(hosts) if alike else late, hosts)


ResultLike = ScenarioLike | Result
"""A result, or anything that is accepted as a scenario, which is then simulated."""


@check_arguments
def simulate(
    scenario: ScenarioLike,
    changes: Changes = (),
    *,
    schedule: Schedule | ScheduleFunction | None = None,
    folded: bool = True,
    engine: Engine | None = None,
    **more: Any,
) -> Result:
    """Simulate a scenario's steps; the scenario may be a built-in name, a path, a dict, a Scenario or a Result.

    ``changes`` and keywords change it as in ``simcluster.scenario``: ``simulate("tiny_dp", parallel__tp=2)``.
    ``schedule`` replaces the scenario's: a Schedule, or a function (stages, microbatches, chunks) that returns one;
    InputError, with the place marked, if it is broken. ``folded=False`` simulates every rank, with the same result to
    the bit; a small step is simulated both ways, and these are compared (``step.engine_run``). ``engine`` replaces the
    scenario's: "simpy" simulates equal ranks once by the reference, "compiled" by the compiled engine, "auto" by the
    one that suits the number of ops; "reference", every rank by the reference, is the plain meaning of a step, which
    all others equal (``simcluster.reference.step_simulation``).
    """
    scenario = to_scenario(scenario, "simulate")
    if pairs := [*list_overrides(changes), *keywords_to_changes(more)]:
        scenario = scenario.with_(pairs)
    if schedule is not None:
        scenario = scenario.with_schedule(schedule)
    if engine is not None:
        scenario = scenario.with_({"engine": engine})
    return simulate_scenario(scenario, folded=folded, single=True)


def to_result(given: ResultLike, caller: str) -> Result:
    """Return the argument if it is a result; otherwise treat it as a scenario and simulate it."""
    if isinstance(given, Result):
        return given
    takes = "a result or a scenario (a built-in name, a path, a dict, a Scenario)"
    return simulate_scenario(to_scenario(given, caller, takes))


@pause_gc()
def simulate_scenario(
    scenario: Scenario,
    *,
    folded: bool = True,
    change: EditPrograms = list,
    planned: PlannedStep | None = None,
    single: bool = False,
) -> Result:
    """Simulate a scenario's steps and return the result; a function may edit the planned ops first.

    ``planned`` is its plan, if known. ``single`` means no study: ``engine: auto`` may take SimPy (``choose_engine``).
    """
    report_step_start(scenario.name)
    planned = planned or plan_step(scenario, change)

    def step_time_of(other: Scenario) -> float:
        return simulate_scenario(other, folded=folded, planned=planned).step_time

    played, loading = scenario, None
    if scenario.data and scenario.data.loader:
        loading = simulate_loading(scenario, step_time_of(without_loader(scenario)))
        played = loading.delayed_scenario(scenario) if loading else scenario
    fast = scenario.engine != "reference"
    step = simulate_step(played, planned, folded=folded and fast, single=single)
    stragglers = scenario.straggler_faults
    return Result(
        record=step.record,
        folding=step.folding,
        capacity=step.capacity,
        hop_by_hop=step.hop_by_hop,
        steps=scenario.steps,
        ranks=range(step.facts.ranks),
        scenario=scenario,
        job=planned.job,
        facts=step.facts,
        clean=(lambda: step_time_of(scenario.without(*stragglers))) if stragglers else None,
        loading=loading,
    )
