"""Replicas of a run, and the error of their fast sweep, which takes all transfer times from one planned step.

A random replica is simulated twice with the same draws: as events, and as a longest path whose transfers take as long
as without randomness.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.clock import round_all_to_tick
from simcluster.base.display import Displayable
from simcluster.engine.stage_sweep import BatchStepTimer
from simcluster.faults import SAME_OPS, assign_random_streams
from simcluster.faults.link_capacities import apply_permanent_faults
from simcluster.planning.ops import StageProgram
from simcluster.planning.stage_programs import build_stage_programs
from simcluster.results.distribution import Distribution
from simcluster.results.result import Result
from simcluster.scenario.effort_estimate import estimate_simulation_seconds
from simcluster.scenario.job_conversion import disturbances_of, rank_slowdowns
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import simulate_scenario
from simcluster.studies.fast_path_scopes import REPLICAS
from simcluster.studies.whatif.monte_carlo_study import make_random_replica, monte_carlo, remove_randomness
from simcluster.studies.whatif.replica_sweep import planned_stage_durations

_MOST_SECONDS = 0.3
"""Estimated seconds of a replica as events, up to which it is simulated by default."""


@dataclass(frozen=True, slots=True)
class FrozenLinkComparison(Displayable):
    """Step time (s) of one random replica, once with reused transfer times and once simulated exactly."""

    frozen_step_time: float
    exact_step_time: float

    @property
    def relative_error(self) -> float:
        """Relative error of the step time with reused transfer times."""
        return self.frozen_step_time / self.exact_step_time - 1


def simulate_replicas(
    scenario: Scenario, until: float | None
) -> tuple[Result, Scenario, Distribution, Callable[[], list[float]]]:
    """Simulate the step without randomness, and its replicas; also return that scenario, and the sweep's errors."""
    base = simulate_scenario(remove_randomness(scenario))
    found = monte_carlo(scenario, base=base, until=until)

    def sweep_errors() -> list[float]:
        soon = found.method == "sweep" and is_quick_to_compare(scenario)
        return [each.relative_error for each in compare_frozen_links(scenario, base)] if soon else []

    return replace(base, scenario=scenario), base.scenario, found, sweep_errors


def compare_frozen_links(
    scenario: Scenario, base: Result | None = None, cases: int = 2
) -> tuple[FrozenLinkComparison, ...]:
    """Simulate some random replicas by the fast Monte Carlo sweep and exactly; return both step times of each.

    ``cases`` replicas; ``base`` is the result without randomness. Empty where the sweep is not used, or where draws
    make ranks do other ops (stalls of hosts) or links carry less at times.
    """
    scenario = scenario.model_copy(update={"faults": assign_random_streams(scenario.faults)})
    others = any(fault.kind not in SAME_OPS and (fault.is_random or "change_program" in fault.effects())
                 for fault in scenario.faults)  # fmt: skip
    if others or REPLICAS.find_obstacle(scenario):
        return ()
    base = base or simulate_scenario(remove_randomness(scenario))
    runs = [make_random_replica(scenario, number) for number in range(cases)]
    pairs = ((_compute_frozen_step_time(run, base), simulate_scenario(run).step_time) for run in runs)
    return tuple(FrozenLinkComparison(*pair) for pair in pairs)


def is_quick_to_compare(scenario: Scenario) -> bool:
    """Return whether the exact simulation of a random replica takes only a fraction of a second."""
    return estimate_simulation_seconds(scenario.model_copy(update={"replicas": 1})) <= _MOST_SECONDS


def _compute_frozen_step_time(replica: Scenario, base: Result) -> float:
    programs, layout = build_stage_programs(base.job), base.job.plan
    sweep = BatchStepTimer(programs, layout)
    planned = planned_stage_durations(base, sweep)
    alone, drawn = (_list_op_durations(scenario, base, programs, sweep) for scenario in (base.scenario, replica))

    def op_durations(stage: int, number: int) -> Floats:
        took = planned[stage].op_durations(number)
        if sweep.ops[stage][number][1].work.group(stage) is not None:
            return took
        was, now = alone[stage][number], drawn[stage][number]
        slowed = np.divide(took * now, was, out=now.copy(), where=was > 0)
        return np.asarray(np.where(took == was, now, slowed))

    return float(sweep(op_durations, 1)[0]) / replica.steps


def _list_op_durations(
    scenario: Scenario, base: Result, programs: list[StageProgram], sweep: BatchStepTimer
) -> list[Floats]:  # fmt: skip
    cluster = apply_permanent_faults(scenario.faults, scenario.cluster.built, scenario.seed)
    disturbed, slow = disturbances_of(scenario, base.job.plan, cluster), np.array(rank_slowdowns(scenario))
    found = []
    for stage, (ops, ranks) in enumerate(zip(sweep.ops, sweep.stage_ranks, strict=True)):
        retimed = (disturbed.disturbed_program(rank, programs[stage]) for rank in ranks.tolist())
        alone = np.stack([_list_planned_durations(program) for program in retimed], axis=1)
        computes = np.array([op.work.sensitivity is not None for _, op in ops])
        found.append(round_all_to_tick(alone * np.where(computes[:, None], slow[ranks], 1.0)))
    return found


def _list_planned_durations(program: StageProgram) -> Floats:
    items = [item for own in program.lanes.values() for item in own]
    segments = {id(item.segment): [op.work.seconds for op in item.segment.ops] for item in items}
    return np.array([seconds for item in items for seconds in segments[id(item.segment)]])
