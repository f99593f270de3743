"""Simulation of long training runs, stage by stage, from a scenario's ``run:`` section.

Each stage is a separate run, begun from the checkpoint that ended the previous one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from simcluster.base.errors import InputError
from simcluster.documents.argument_types import check_arguments
from simcluster.longrun.long_run import LongRun, RunOutcomes
from simcluster.longrun.power import resolve_power
from simcluster.longrun.run_feasibility import check_run_ends
from simcluster.longrun.studies.cluster_states import ClusterStateSimulator
from simcluster.longrun.studies.run_builder import build_long_run, require_run_section, resolve_run_count
from simcluster.longrun.studies.run_chunks import RunSimulator, Workers, open_run_simulator
from simcluster.longrun.studies.staged_training import StagedTraining
from simcluster.longrun.studies.training_run import TrainingRun
from simcluster.results.result import Result
from simcluster.scenario.run_section import count_stage_tokens
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.scenario.scenario_arguments import ScenarioLike, to_scenario
from simcluster.studies.sweep.sweep import Progress


@check_arguments
def train(
    scenario: ScenarioLike,
    *,
    played: int | None = None,
    workers: Workers = 1,
    store: str | Path | None = None,
    progress: Progress = lambda done, total, failed: None,
) -> TrainingRun | StagedTraining:
    """Simulate a scenario's long training run ``played`` times (default: as its key ``run.played``).

    A run with ``run.stages`` is a ``StagedTraining``: a ``TrainingRun`` for each stage, and their sums. ``workers`` is
    a number of processes, "dask://HOST:PORT", or any concurrent.futures.Executor; the numbers are the same to the bit.
    What is finished is kept in ``store`` (a file): the same call resumes there after a kill. InputError if the scenario
    has no run, or an invalid one.
    """
    scenario = to_scenario(scenario, "train")
    count = resolve_run_count(scenario, played)
    with open_run_simulator(workers, store, progress) as player:
        return simulate_policies({"": (scenario, prepare_stages(scenario, {}))}, count, player)[""]


@check_arguments
def train_stages(
    scenario: ScenarioLike,
    *,
    played: int | None = None,
    workers: Workers = 1,
    store: str | Path | None = None,
    progress: Progress = lambda done, total, failed: None,
) -> StagedTraining:
    """Simulate the long training runs of a scenario with stages; raise InputError if it has no stages."""
    scenario = to_scenario(scenario, "train_stages")
    if not require_run_section(scenario).stages:
        raise InputError(f"{scenario.name}: the run has no stages; simulate it with simcluster.train")
    found = train(scenario, played=played, workers=workers, store=store, progress=progress)
    assert isinstance(found, StagedTraining)
    return found


class PreparedStage(NamedTuple):
    """Stage of a long run that is ready to simulate: numerical description, cluster states, and healthy step."""

    scenario: Scenario
    run: LongRun
    states: dict[str, float]
    step: Result
    notes: tuple[str, ...]

    @classmethod
    def from_scenario(cls, scenario: Scenario, states: ClusterStateSimulator) -> PreparedStage:
        """Prepare a scenario's run for simulation; raise InputError if the run would practically never end."""
        resolve_power(scenario.cluster.device.name, require_run_section(scenario).power)  # raises its errors first
        run = build_long_run(scenario, states)
        check_run_ends(run)
        return cls(scenario, run, dict(states.used_times), states.result, tuple(states.notes))


def prepare_stages(scenario: Scenario, known: dict[str, ClusterStateSimulator]) -> list[PreparedStage]:
    """Prepare the stages of a scenario's run; stages with equal steps share simulated cluster states (``known``)."""
    scenarios = split_into_stages(scenario) if require_run_section(scenario).stages else [scenario]
    return [
        PreparedStage.from_scenario(one, known.setdefault(repr(document_without_run(one)), ClusterStateSimulator(one)))
        for one in scenarios
    ]


def simulate_policies(
    policies: Mapping[str, tuple[Scenario, list[PreparedStage]]], count: int, simulator: RunSimulator
) -> dict[str, TrainingRun | StagedTraining]:
    """Simulate ``count`` runs of each named policy with the same random numbers."""
    seed = next(iter(policies.values()))[0].seed
    outcomes: dict[str, list[RunOutcomes]] = {name: [] for name in policies}
    for number in range(max(len(stages) for _, stages in policies.values())):
        runs = {name: stages[number].run for name, (_, stages) in policies.items() if number < len(stages)}
        for name, each in simulator.simulate_named_runs(runs, seed, count, _APART * number).items():
            outcomes[name].append(each)
    found: dict[str, TrainingRun | StagedTraining] = {}
    for name, (scenario, stages) in policies.items():
        trained = tuple(
            TrainingRun(stage.scenario, stage.run, stage.states, each, stage.step, _APART * number, stage.notes)
            for number, (stage, each) in enumerate(zip(stages, outcomes[name], strict=True))
        )
        found[name] = StagedTraining(scenario, trained) if require_run_section(scenario).stages else trained[0]
    return found


_APART = 10**6  # numbers of the first runs of two stages


def document_without_run(scenario: Scenario) -> dict[str, Any]:
    """Return the part of a scenario document that determines the step: everything except run and name."""
    return {key: value for key, value in scenario.document().items() if key not in ("run", "name")}


def split_into_stages(scenario: Scenario) -> list[Scenario]:
    """Return one scenario for each stage of a run, with that stage's tokens and changes."""
    section, found = require_run_section(scenario), []
    counts = count_stage_tokens(section.stages, section.tokens)
    for number, (stage, tokens) in enumerate(zip(section.stages, counts, strict=True), 1):
        changes: dict[str, Any] = dict(stage.set)
        changes |= {"run.stages": None, "run.tokens": tokens, "name": f"{scenario.name}, stage {number}"}
        try:
            found.append(from_document(scenario.document(), changes))
        except InputError as error:
            problem = str(error).removeprefix("override: ").replace("<document>: ", "")
            path = ("run", "stages", number - 1, "set")
            raise scenario.origin.document.error_at(path, f"stage {number}: {problem}") from None
    return found


__all__ = ["StagedTraining", "TrainingRun", "train", "train_stages"]
