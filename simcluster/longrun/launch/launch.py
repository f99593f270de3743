"""A launch as its checklist asks for it: the step that was played, its run of weeks in numbers, a few runs of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from simcluster.base.errors import InputError
from simcluster.longrun.run import LongRun
from simcluster.longrun.studies.assumptions import assumptions_of
from simcluster.longrun.studies.build import long_run_of, section_of
from simcluster.longrun.studies.chunks import player_of
from simcluster.longrun.studies.staged import StagedRuns
from simcluster.longrun.studies.states import StepStates
from simcluster.longrun.studies.train_stages import stage_scenarios, train_stages
from simcluster.longrun.studies.training_run import TrainingRun, played_runs
from simcluster.results.result import Result
from simcluster.scenario.run_section import RunSpec, tokens_of_stages
from simcluster.scenario.scenario import Scenario

RUNS = 20
"""That are played for days and dollars: seconds."""


@dataclass(frozen=True)
class Launch:
    """The run of a ``whole`` scenario.

    Where that has stages, ``scenario`` is the stage with most tokens, number ``stage`` (from 1; 0: there are none);
    else it is the whole.  ``states`` are those of the cluster in it.
    """

    whole: Scenario
    scenario: Scenario
    states: StepStates = field(repr=False)
    stage: int = 0

    @classmethod
    def of(cls, whole: Scenario, result: Result | None = None, states: StepStates | None = None) -> Launch:
        """That of a scenario, whose step may have been played already (``result``), or whose states were.

        InputError without a run, or for stages that cannot be.
        """
        section = section_of(whole)
        scenario, number = whole, 0
        if section.stages:
            counts = tokens_of_stages(section.stages, section.tokens)
            number = counts.index(max(counts)) + 1
            scenario = stage_scenarios(whole)[number - 1]
        if states is None:
            states = StepStates(scenario)
            if result is not None and _same_step(states.scenario, result.scenario):
                vars(states)["result"] = result
        return cls(whole, scenario, states, number)

    @property
    def section(self) -> RunSpec:
        """The run as a document."""
        return section_of(self.scenario)

    @cached_property
    def run(self) -> LongRun:
        """In numbers; InputError where that cannot be."""
        return long_run_of(self.scenario, self.states)

    @property
    def assumed(self) -> tuple[str, ...]:
        """Assumptions that the points depend on; none where the run is invalid."""
        try:
            return assumptions_of(self.scenario, self.run)
        except InputError:
            return ()

    @cached_property
    def played(self) -> TrainingRun | StagedRuns:
        """A few runs; InputError where one never ends, or takes too long to be played."""
        if self.stage:
            return train_stages(self.whole, played=RUNS)
        with player_of(1, None, lambda done, total, wrong: None) as player:
            return played_runs(self.scenario, RUNS, player, states=self.states)


def _same_step(one: Scenario, other: Scenario) -> bool:
    """Have they the same step?"""
    apart = {"name": "", "run": None}
    return one.model_copy(update=apart) == other.model_copy(update=apart)
