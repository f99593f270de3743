"""How far a sweep of replicas is from events, whose links and interference are those of each replica.

A sweep takes what transfers do to each other, and communication to concurrent computation, from the run without chance.
Here a drawn replica is simulated by both with the same draws: as events, and as a longest path whose transfers take
what they took without chance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.clock import all_on_grid
from simcluster.base.shown import Shown
from simcluster.engine.stage_sweep import StageSweep
from simcluster.faults import SAME_OPS, placed
from simcluster.faults.capacities import with_permanent
from simcluster.planning.ops import StageProgram
from simcluster.planning.stages import stage_programs
from simcluster.results.result import Result
from simcluster.scenario.effort import estimated_seconds
from simcluster.scenario.job import disturbances_of, slowness
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import replay
from simcluster.studies.whatif.chance import seed_of
from simcluster.studies.whatif.chance_scope import REPLICAS
from simcluster.studies.whatif.durations import durations
from simcluster.studies.whatif.montecarlo import without_chance
from simcluster.studies.whatif.replica_sweep import OfStage

_CASES = 2
_MOST_SECONDS = 0.3
"""Of a replica as events, by the estimate, for it to be played unasked."""


@dataclass(frozen=True, slots=True)
class FrozenLinks(Shown):
    """A drawn replica: seconds of its step with links as without chance, and by events."""

    frozen: float
    events: float

    @property
    def off(self) -> float:
        """How far the first is from the second, as a part of it."""
        return self.frozen / self.events - 1


def frozen_links(scenario: Scenario, base: Result | None = None, cases: int = _CASES) -> tuple[FrozenLinks, ...]:
    """So many replicas of a scenario, each played by both; ``base`` is the run without chance.

    Empty where the sweep does not play the scenario, or where what is drawn makes ranks do other ops (stalls of hosts)
    or links carry less at times.
    """
    scenario = scenario.model_copy(update={"faults": placed(scenario.faults)})
    others = any(fault.kind not in SAME_OPS and (fault.by_chance or "program" in fault.effects())
                 for fault in scenario.faults)  # fmt: skip
    if others or REPLICAS.obstacle(scenario):
        return ()
    base = base or replay(without_chance(scenario))
    runs = [scenario.model_copy(update={"seed": seed_of(scenario.seed, number), "replicas": 1})
            for number in range(cases)]  # fmt: skip
    return tuple([FrozenLinks(_frozen(run, base), replay(run).step_time) for run in runs])


def soon_told(scenario: Scenario) -> bool:
    """Are some replicas played as events in a few seconds?"""
    return estimated_seconds(scenario.model_copy(update={"replicas": 1})) <= _MOST_SECONDS


def _frozen(run: Scenario, base: Result) -> float:
    """Seconds of a step with the links of the run without chance, and what ranks compute as this one draws it."""
    programs, layout = stage_programs(base.job), base.job.plan
    sweep = StageSweep(programs, layout)
    before, after = (_Computation(scenario, base) for scenario in (base.scenario, run))
    played = durations(base)
    planned = [
        OfStage.of_ranks([played[base.simulated_for(rank)] for rank in ranks.tolist()], ops)
        for ops, ranks in zip(sweep.ops, sweep.stage_ranks, strict=True)
    ]
    alone, drawn = (each.of_stages(sweep) for each in (before, after))

    def seconds(stage: int, number: int, start: object) -> Floats:
        took = planned[stage].of(number)
        if sweep.ops[stage][number][1].work.group(stage) is not None:
            return took
        was, now = alone[stage][number], drawn[stage][number]
        slowed = np.divide(took * now, was, out=now.copy(), where=was > 0)
        return np.asarray(np.where(took == was, now, slowed))

    return float(sweep(seconds, 1)[0]) / run.steps


class _Computation:
    """Computation of the ranks of a scenario with nothing concurrent."""

    def __init__(self, scenario: Scenario, base: Result) -> None:
        self._programs, self._stages = stage_programs(base.job), base.job.plan.stages()
        cluster = with_permanent(scenario.faults, scenario.cluster.built, scenario.seed)
        self._disturbed = disturbances_of(scenario, base.job.plan, cluster)
        self._slow = np.array(slowness(scenario))

    def program(self, rank: int) -> StageProgram:
        """Return the program of a rank."""
        return self._disturbed.retimed_program(rank, self._programs[self._stages[rank]])

    def of_stages(self, sweep: StageSweep) -> list[Floats]:
        """Return the seconds of the ops of every stage [op, place]."""
        found = []
        for ops, ranks in zip(sweep.ops, sweep.stage_ranks, strict=True):
            alone = np.stack([_seconds(self.program(rank)) for rank in ranks.tolist()], axis=1)
            computes = np.array([op.work.sensitivity is not None for _, op in ops])
            found.append(all_on_grid(alone * np.where(computes[:, None], self._slow[ranks], 1.0)))
        return found


def _seconds(program: StageProgram) -> Floats:
    """Return the seconds of a program's ops, those of a segment found once."""
    items = [item for own in program.lanes.values() for item in own]
    segments = {id(item.segment): [op.work.seconds for op in item.segment.ops] for item in items}
    return np.array([seconds for item in items for seconds in segments[id(item.segment)]])
