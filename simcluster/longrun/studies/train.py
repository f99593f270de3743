"""Training runs of weeks: the ``run:`` section of a scenario simulated many times, stage by stage where it has stages.

Each stage is a run of its own, begun from the checkpoint that ended the one before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.argument_types import checked
from simcluster.longrun.ending import check_end
from simcluster.longrun.power import draw_with
from simcluster.longrun.studies.build import asked_runs, long_run_of, section_of
from simcluster.longrun.studies.chunks import RunPlayer, Workers, player_of
from simcluster.longrun.studies.staged import StagedTraining
from simcluster.longrun.studies.states import StepStates
from simcluster.longrun.studies.training_run import TrainingRun
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
    """Simulate the runs of a scenario: ``played`` of them (default: its ``run.played``).

    A run with ``run.stages`` is a ``StagedTraining``: a ``TrainingRun`` for each stage, and their sums.  ``workers`` is
    a number of processes, "dask://HOST:PORT", or any concurrent.futures.Executor; the numbers are the same to the bit.
    What is finished is kept in ``store`` (a file): the same call resumes there after a kill.  InputError if the
    scenario has no run, or an invalid one.
    """
    scenario = scenario_of(scenario, "train")
    if section_of(scenario).stages:
        return train_stages(scenario, played=played, workers=workers, store=store, progress=progress)
    with player_of(workers, store, progress) as player:
        return played_runs(scenario, asked_runs(scenario, played), player)


@checked
def train_stages(
    scenario: ScenarioLike,
    *,
    played: int | None = None,
    workers: Workers = 1,
    store: str | Path | None = None,
    progress: Progress = lambda done, total, wrong: None,
) -> StagedTraining:
    """Simulate the runs of a scenario whose ``run`` has stages: run r of a stage continues run r of the one before.

    Arguments as for ``train``.  InputError for a run without stages, or an invalid stage.
    """
    scenario = scenario_of(scenario, "train_stages")
    if not section_of(scenario).stages:
        raise InputError(f"{scenario.name}: the run has no stages; play it with simcluster.train")
    scenarios, count = stage_scenarios(scenario), asked_runs(scenario, played)
    with player_of(workers, store, progress) as player:
        stages = [played_runs(own, count, player, first=first_of_stage(number)) for number, own in enumerate(scenarios)]
    return StagedTraining(scenario, tuple(stages))


def played_runs(
    scenario: Scenario, count: int, player: RunPlayer, *, first: int = 0, states: StepStates | None = None
) -> TrainingRun:
    """Simulate runs of one stage, from number ``first`` on; ``states`` are those of its cluster, if some are known."""
    draw_with(scenario.cluster.device.name, section_of(scenario).power)  # its errors come first
    states = StepStates(scenario) if states is None else states
    run = long_run_of(scenario, states)
    check_end(run)
    outcomes = player.play({"": run}, scenario.seed, count, first)[""]
    return TrainingRun(scenario, run, dict(states.used), outcomes, states.result, first, tuple(states.notes))


def first_of_stage(number: int) -> int:
    """Return the number of a stage's first run: no two stages (from 0) draw the same numbers."""
    return 10**6 * number


def stage_scenarios(scenario: Scenario) -> list[Scenario]:
    """Return the scenario of each stage: a run of its tokens, with what the stage sets."""
    section, found = section_of(scenario), []
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
