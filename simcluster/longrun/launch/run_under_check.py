"""Long run examined by launch checks (simulated step and runs), and base classes of these checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from simcluster.base.errors import InputError
from simcluster.longrun.defaults import list_assumptions
from simcluster.longrun.long_run import LongRun
from simcluster.longrun.studies.cluster_states import ClusterStateSimulator
from simcluster.longrun.studies.run_builder import build_long_run, require_run_section
from simcluster.longrun.studies.run_chunks import RunSimulator
from simcluster.longrun.studies.staged_training import StagedTraining
from simcluster.longrun.studies.training import PreparedStage, simulate_policies, split_into_stages, train_stages
from simcluster.longrun.studies.training_run import TrainingRun
from simcluster.results.result import Result
from simcluster.scenario.run_section import RunSpec, count_stage_tokens
from simcluster.scenario.scenario import Scenario
from simcluster.studies.whatif.checklist_points import ChecklistPoint
from simcluster.studies.whatif.remedies import VERDICTS, MakeScenario, Remedy, Values, Verdict

RUNS = 20
"""Number of runs to simulate for days and dollars, which takes seconds."""


@dataclass(frozen=True)
class RunUnderCheck:
    """Long run examined by a launch checklist, with a step and a few runs simulated on first use.

    If the ``whole`` scenario has stages, ``scenario`` is the stage with most tokens, number ``stage`` (from 1; 0: no
    stages), else the whole. ``states`` are the simulated cluster states of that stage.
    """

    whole: Scenario
    scenario: Scenario
    states: ClusterStateSimulator = field(repr=False)
    stage: int = 0

    @classmethod
    def from_scenario(
        cls, whole: Scenario, result: Result | None = None, states: ClusterStateSimulator | None = None
    ) -> RunUnderCheck:
        """Prepare a scenario's launch check; raise InputError if its run is missing or its stages invalid."""
        section = require_run_section(whole)
        scenario, number = whole, 0
        if section.stages:
            counts = count_stage_tokens(section.stages, section.tokens)
            number = counts.index(max(counts)) + 1
            scenario = split_into_stages(whole)[number - 1]
        if states is None:
            states = ClusterStateSimulator(scenario)
            steps = states.scenario, None if result is None else result.scenario
            one, other = (each and each.model_copy(update={"name": "", "run": None}) for each in steps)
            if one == other:
                vars(states)["result"] = result
        return cls(whole, scenario, states, number)

    @property
    def section(self) -> RunSpec:
        """The scenario's ``run:`` section."""
        return require_run_section(self.scenario)

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
        """Results of a few simulated runs; raises InputError if a run never ends or takes too long to simulate."""
        if self.stage:
            return train_stages(self.whole, played=RUNS)
        stage = PreparedStage.from_scenario(self.scenario, self.states)
        return simulate_policies({"": (self.scenario, [stage])}, RUNS, RunSimulator())[""]


RUN_PATHS = ("run.", "data.", "training.memory_recipe")
"""Paths that a remedy of these checks may change, none of which changes the step."""


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """Finding of one launch check: verdict, decisive number, advice, and changes to try, the best first."""

    verdict: Verdict
    found: str
    advice: str = ""
    changes_to_try: tuple[Values, ...] = ()


@dataclass(frozen=True, slots=True)
class RunCheck:
    """Launch check of a long run: ``find`` returns a finding, or None if the check does not apply to the run."""

    name: str
    rule: str
    find: Callable[[RunUnderCheck], CheckFinding | None]

    def evaluate(self, launch: RunUnderCheck, make_scenario: MakeScenario) -> ChecklistPoint | None:
        """Return the checked point with the changes that improve the finding; None if the check does not apply."""
        if (seen := self._find_or_fail(launch)) is None:
            return None
        known = self.name, seen.verdict, seen.found, self.rule, seen.advice, seen.changes_to_try
        remedies = tuple(self._find_remedies(launch, seen, make_scenario))
        return ChecklistPoint(*known, must_shorten_step=False, remedies=remedies)

    def _find_or_fail(self, launch: RunUnderCheck) -> CheckFinding | None:
        try:
            return self.find(launch)
        except InputError as problem:
            return CheckFinding("fail", " ".join(str(problem).split()))

    def _find_remedies(self, launch: RunUnderCheck, finding: CheckFinding, make_scenario: MakeScenario) -> list[Remedy]:
        found = []
        for values in finding.changes_to_try if finding.verdict != "pass" else ():
            try:
                then = self._find_or_fail(RunUnderCheck.from_scenario(make_scenario(values), states=launch.states))
            except InputError:
                continue
            if then is not None and VERDICTS.index(then.verdict) < VERDICTS.index(finding.verdict):
                step, memory = launch.states.healthy_step_time, launch.states.result.memory.total
                found.append(Remedy(values, step, step, memory, (then.verdict, then.found)))
        return sorted(found, key=lambda each: VERDICTS.index(each.point_result[0]) if each.point_result else 0)


def changes_only_run(values: Values) -> bool:
    """Return whether changes affect only a scenario's ``run`` or data section, so that the step is unchanged."""
    return all(path.startswith(RUN_PATHS) for path in values)
