"""Simulation of long training runs from a scenario's ``run:`` section, stage by stage.

Each stage is a separate run, begun from the checkpoint that ended the previous one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from simcluster.base.errors import InputError
from simcluster.documents.argument_types import checked
from simcluster.longrun.ending import check_run_ends
from simcluster.longrun.power import resolve_power
from simcluster.longrun.run import LongRun, Outcomes
from simcluster.longrun.studies.build import build_long_run, number_of_runs, run_section
from simcluster.longrun.studies.chunks import RunSimulator, Workers, open_run_simulator
from simcluster.longrun.studies.staged import StagedTraining
from simcluster.longrun.studies.states import StepStates
from simcluster.longrun.studies.training_run import TrainingRun
from simcluster.results.result import Result
from simcluster.scenario.given import ScenarioLike, scenario_of
from simcluster.scenario.run_section import tokens_of_stages
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.studies.sweep.sweep import Progress


@checked
def train(
    scenario: ScenarioLike,
    *,
    played: int | None = None,
    workers: Workers = 1,
    store: str | Path | None = None,
    progress: Progress = lambda done, total, wrong: None,
) -> TrainingRun | StagedTraining:
    """Simulate the long training runs of a scenario, ``played`` times (default: its ``run.played``).

    A run with ``run.stages`` is a ``StagedTraining``: a ``TrainingRun`` for each stage, and their sums. ``workers`` is
    a number of processes, "dask://HOST:PORT", or any concurrent.futures.Executor; the numbers are the same to the bit.
    What is finished is kept in ``store`` (a file): the same call resumes there after a kill. InputError if the scenario
    has no run, or an invalid one.
    """
    scenario = scenario_of(scenario, "train")
    count = number_of_runs(scenario, played)
    with open_run_simulator(workers, store, progress) as player:
        return simulate_policies({"": (scenario, prepare_stages(scenario, {}))}, count, player)[""]


@checked
def train_stages(
    scenario: ScenarioLike,
    *,
    played: int | None = None,
    workers: Workers = 1,
    store: str | Path | None = None,
    progress: Progress = lambda done, total, wrong: None,
) -> StagedTraining:
    """Simulate the long training runs of a scenario that has stages; InputError if it has none."""
    scenario = scenario_of(scenario, "train_stages")
    if not run_section(scenario).stages:
        raise InputError(f"{scenario.name}: the run has no stages; simulate it with simcluster.train")
    found = train(scenario, played=played, workers=workers, store=store, progress=progress)
    assert isinstance(found, StagedTraining)
    return found


class PreparedStage(NamedTuple):
    """Stage of a long run before its simulation: its numerical description, cluster states, and healthy step."""

    scenario: Scenario
    run: LongRun
    states: dict[str, float]
    step: Result
    notes: tuple[str, ...]

    @classmethod
    def of_scenario(cls, scenario: Scenario, states: StepStates) -> PreparedStage:
        """Prepare a scenario's run for simulation; InputError if it would practically never end."""
        resolve_power(scenario.cluster.device.name, run_section(scenario).power)  # raises its errors first
        run = build_long_run(scenario, states)
        check_run_ends(run)
        return cls(scenario, run, dict(states.used), states.result, tuple(states.notes))


def prepare_stages(scenario: Scenario, known: dict[str, StepStates]) -> list[PreparedStage]:
    """Prepare the stages of a scenario's run for simulation; stages with equal steps share ``known`` states."""
    scenarios = stage_scenarios(scenario) if run_section(scenario).stages else [scenario]
    return [
        PreparedStage.of_scenario(each, known.setdefault(repr(step_document(each)), StepStates(each)))
        for each in scenarios
    ]


def simulate_policies(
    policies: Mapping[str, tuple[Scenario, list[PreparedStage]]], count: int, player: RunSimulator
) -> dict[str, TrainingRun | StagedTraining]:
    """Simulate ``count`` runs of each named policy with the same random numbers."""
    seed = next(iter(policies.values()))[0].seed
    outcomes: dict[str, list[Outcomes]] = {name: [] for name in policies}
    for number in range(max(len(stages) for _, stages in policies.values())):
        runs = {name: stages[number].run for name, (_, stages) in policies.items() if number < len(stages)}
        for name, each in player.simulate(runs, seed, count, _APART * number).items():
            outcomes[name].append(each)
    found: dict[str, TrainingRun | StagedTraining] = {}
    for name, (scenario, stages) in policies.items():
        trained = tuple(
            TrainingRun(stage.scenario, stage.run, stage.states, each, stage.step, _APART * number, stage.notes)
            for number, (stage, each) in enumerate(zip(stages, outcomes[name], strict=True))
        )
        found[name] = StagedTraining(scenario, trained) if run_section(scenario).stages else trained[0]
    return found


_APART = 10**6  # numbers of the first runs of two stages


def step_document(scenario: Scenario) -> dict[str, Any]:
    """Return the part of a scenario's document that determines its step: all but its run and name."""
    return {key: value for key, value in scenario.document().items() if key not in ("run", "name")}


def stage_scenarios(scenario: Scenario) -> list[Scenario]:
    """Return a scenario for each stage of a run, with the stage's tokens and changes."""
    section, found = run_section(scenario), []
    counts = tokens_of_stages(section.stages, section.tokens)
    for number, (stage, tokens) in enumerate(zip(section.stages, counts, strict=True), 1):
        changes: dict[str, Any] = dict(stage.set)
        changes |= {"run.stages": None, "run.tokens": tokens, "name": f"{scenario.name}, stage {number}"}
        try:
            found.append(from_document(scenario.document(), changes))
        except InputError as error:
            problem = str(error).removeprefix("override: ").replace("<document>: ", "")
            path = ("run", "stages", number - 1, "set")
            raise scenario.origin.document.error(path, f"stage {number}: {problem}") from None
    return found


__all__ = ["StagedTraining", "TrainingRun", "train", "train_stages"]
