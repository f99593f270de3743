"""Error of the Monte Carlo sweep, which keeps the transfer times of the step without randomness.

A random replica is simulated twice with the same draws: as events, and as a longest path whose transfers take as long
as without randomness.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.clock import round_all_to_tick
from simcluster.base.shown import Displayable
from simcluster.engine.stage_sweep import StageSweep
from simcluster.faults import SAME_OPS, placed
from simcluster.faults.capacities import apply_permanent_faults
from simcluster.planning.ops import StageProgram
from simcluster.planning.stages import stage_programs
from simcluster.results.result import Result
from simcluster.scenario.effort import estimate_seconds
from simcluster.scenario.job import disturbances_of, rank_slowdowns
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import simulate_scenario
from simcluster.studies.scopes import REPLICAS
from simcluster.studies.whatif.montecarlo import make_replica, remove_randomness
from simcluster.studies.whatif.replica_sweep import planned_seconds

_MOST_SECONDS = 0.3
"""Estimated seconds of a replica as events, up to which it is simulated by default."""


@dataclass(frozen=True, slots=True)
class FrozenLinks(Displayable):
    """Step time (s) of a random replica: with transfer times as without randomness, and exact."""

    frozen: float
    events: float

    @property
    def relative_error(self) -> float:
        """Relative error of the step time with frozen transfer times."""
        return self.frozen / self.events - 1


def compare_frozen_links(scenario: Scenario, base: Result | None = None, cases: int = 2) -> tuple[FrozenLinks, ...]:
    """Simulate a few random replicas by the Monte Carlo sweep and exactly; return both step times.

    ``cases`` replicas; ``base`` is the result without randomness. Empty where the sweep is not used, or where draws
    make ranks do other ops (stalls of hosts) or links carry less at times.
    """
    scenario = scenario.model_copy(update={"faults": placed(scenario.faults)})
    others = any(fault.kind not in SAME_OPS and (fault.by_chance or "program" in fault.effects())
                 for fault in scenario.faults)  # fmt: skip
    if others or REPLICAS.obstacle(scenario):
        return ()
    base = base or simulate_scenario(remove_randomness(scenario))
    runs = [make_replica(scenario, number) for number in range(cases)]
    return tuple([FrozenLinks(_frozen_step_time(run, base), simulate_scenario(run).step_time) for run in runs])


def is_quickly_compared(scenario: Scenario) -> bool:
    """Return whether a random replica can be simulated exactly within a fraction of a second."""
    return estimate_seconds(scenario.model_copy(update={"replicas": 1})) <= _MOST_SECONDS


def _frozen_step_time(run: Scenario, base: Result) -> float:
    programs, layout = stage_programs(base.job), base.job.plan
    sweep = StageSweep(programs, layout)
    planned = planned_seconds(base, sweep)
    alone, drawn = (_compute_seconds(scenario, base, programs, sweep) for scenario in (base.scenario, run))

    def seconds(stage: int, number: int) -> Floats:
        took = planned[stage].of(number)
        if sweep.ops[stage][number][1].work.group(stage) is not None:
            return took
        was, now = alone[stage][number], drawn[stage][number]
        slowed = np.divide(took * now, was, out=now.copy(), where=was > 0)
        return np.asarray(np.where(took == was, now, slowed))

    return float(sweep(seconds, 1)[0]) / run.steps


def _compute_seconds(
    scenario: Scenario, base: Result, programs: list[StageProgram], sweep: StageSweep
) -> list[Floats]:  # fmt: skip
    cluster = apply_permanent_faults(scenario.faults, scenario.cluster.built, scenario.seed)
    disturbed, slow = disturbances_of(scenario, base.job.plan, cluster), np.array(rank_slowdowns(scenario))
    found = []
    for stage, (ops, ranks) in enumerate(zip(sweep.ops, sweep.stage_ranks, strict=True)):
        retimed = (disturbed.retimed_program(rank, programs[stage]) for rank in ranks.tolist())
        alone = np.stack([_op_seconds(program) for program in retimed], axis=1)
        computes = np.array([op.work.sensitivity is not None for _, op in ops])
        found.append(round_all_to_tick(alone * np.where(computes[:, None], slow[ranks], 1.0)))
    return found


def _op_seconds(program: StageProgram) -> Floats:
    items = [item for own in program.lanes.values() for item in own]
    segments = {id(item.segment): [op.work.seconds for op in item.segment.ops] for item in items}
    return np.array([seconds for item in items for seconds in segments[id(item.segment)]])
