"""Long run as its launch checklist needs it: the simulated step, a few simulated runs, and the checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from simcluster.base.errors import InputError
from simcluster.longrun.defaults import list_assumptions
from simcluster.longrun.run import LongRun
from simcluster.longrun.studies.build import build_long_run, run_section
from simcluster.longrun.studies.chunks import RunSimulator
from simcluster.longrun.studies.staged import StagedTraining
from simcluster.longrun.studies.states import StepStates
from simcluster.longrun.studies.train import PreparedStage, simulate_policies, stage_scenarios, train_stages
from simcluster.longrun.studies.training_run import TrainingRun
from simcluster.results.result import Result
from simcluster.scenario.run_section import RunSpec, tokens_of_stages
from simcluster.scenario.scenario import Scenario
from simcluster.studies.whatif.preflight_points import Point
from simcluster.studies.whatif.remedies import VERDICTS, MakeScenario, Remedy, Values, Verdict

RUNS = 20
"""Number of runs to simulate for days and dollars, which takes seconds."""


@dataclass(frozen=True)
class Launch:
    """Long run of a scenario, with its step and a few runs simulated on demand for the launch checklist.

    If the ``whole`` scenario has stages, ``scenario`` is the stage with most tokens, number ``stage`` (from 1; 0: no
    stages), else the whole. ``states`` are the simulated cluster states of that stage.
    """

    whole: Scenario
    scenario: Scenario
    states: StepStates = field(repr=False)
    stage: int = 0

    @classmethod
    def from_scenario(cls, whole: Scenario, result: Result | None = None, states: StepStates | None = None) -> Launch:
        """Prepare the launch check of a scenario; InputError without a run, or for invalid stages."""
        section = run_section(whole)
        scenario, number = whole, 0
        if section.stages:
            counts = tokens_of_stages(section.stages, section.tokens)
            number = counts.index(max(counts)) + 1
            scenario = stage_scenarios(whole)[number - 1]
        if states is None:
            states = StepStates(scenario)
            steps = states.scenario, None if result is None else result.scenario
            one, other = (each and each.model_copy(update={"name": "", "run": None}) for each in steps)
            if one == other:
                vars(states)["result"] = result
        return cls(whole, scenario, states, number)

    @property
    def section(self) -> RunSpec:
        """The scenario's ``run:`` section."""
        return run_section(self.scenario)

    @cached_property
    def run(self) -> LongRun:
        """Numerical description of the long run; InputError if it is invalid."""
        return build_long_run(self.scenario, self.states)

    @property
    def assumed(self) -> tuple[str, ...]:
        """Assumptions that the checklist depends on; none if the run is invalid."""
        try:
            return tuple(list_assumptions(self.section, self.run))
        except InputError:
            return ()

    @cached_property
    def simulated_runs(self) -> TrainingRun | StagedTraining:
        """Results of a few simulated runs; InputError if one never ends, or takes too long to simulate."""
        if self.stage:
            return train_stages(self.whole, played=RUNS)
        stage = PreparedStage.of_scenario(self.scenario, self.states)
        return simulate_policies({"": (self.scenario, [stage])}, RUNS, RunSimulator())[""]


RUN_PATHS = ("run.", "data.", "training.memory_recipe")
"""Paths that a remedy of these checks may change, none of which changes the step."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Finding of one launch check: verdict, the number that decides it, advice, and changes to try, best first."""

    verdict: Verdict
    found: str
    advice: str = ""
    tries: tuple[Values, ...] = ()


@dataclass(frozen=True, slots=True)
class RunCheck:
    """Launch check of a long run; ``look`` returns None where it does not apply, and InputError fails it."""

    name: str
    rule: str
    look: Callable[[Launch], Observation | None]

    def evaluate(self, launch: Launch, again: MakeScenario) -> Point | None:
        """Return the evaluated check with the changes that improve it; None if it does not apply."""
        if (seen := self._observe(launch)) is None:
            return None
        point = Point(self.name, seen.verdict, seen.found, self.rule, seen.advice, seen.tries, for_time=False)
        return replace(point, remedies=tuple(self._find_remedies(launch, seen, again)))

    def _observe(self, launch: Launch) -> Observation | None:
        try:
            return self.look(launch)
        except InputError as problem:
            return Observation("fail", " ".join(str(problem).split()))

    def _find_remedies(self, launch: Launch, seen: Observation, again: MakeScenario) -> list[Remedy]:
        found = []
        for values in seen.tries if seen.verdict != "pass" else ():
            try:
                then = self._observe(Launch.from_scenario(again(values), states=launch.states))
            except InputError:
                continue
            if then is not None and VERDICTS.index(then.verdict) < VERDICTS.index(seen.verdict):
                step, memory = launch.states.healthy_step_time, launch.states.result.memory.total
                found.append(Remedy(values, step, step, memory, (then.verdict, then.found)))
        return sorted(found, key=lambda each: VERDICTS.index(each.then[0]) if each.then else 0)


def changes_only_run(values: Values) -> bool:
    """Return whether all changes are to a scenario's ``run`` or data, so that the step stays the same."""
    return all(path.startswith(RUN_PATHS) for path in values)
