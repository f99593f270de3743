"""A training run of weeks: a scenario's ``run:`` section played many times, and what came of that."""

from __future__ import annotations

from pathlib import Path

from simcluster.documents.argument_types import checked
from simcluster.longrun.studies.build import asked_runs, section_of
from simcluster.longrun.studies.chunks import Workers, player_of
from simcluster.longrun.studies.train_stages import StagedTraining, train_stages
from simcluster.longrun.studies.training_run import Training, TrainingRun, played_runs
from simcluster.scenario.given import ScenarioLike, scenario_of
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
    """Play the runs of a scenario: ``played`` of them (left out: as many as its ``run.played`` says).

    A run with ``run.stages`` is a ``StagedTraining``: a ``TrainingRun`` for each stage, and their sums.  ``workers`` is
    a number of processes, "dask://HOST:PORT", or any concurrent.futures.Executor; the numbers are the same to the bit.
    What is finished is kept in ``store`` (a file): the same call goes on there after a kill.  InputError if the
    scenario has no run, or one that cannot be.
    """
    scenario = scenario_of(scenario, "train")
    if section_of(scenario).stages:
        return train_stages(scenario, played=played, workers=workers, store=store, progress=progress)
    with player_of(workers, store, progress) as player:
        return played_runs(scenario, asked_runs(scenario, played), player)


__all__ = ["StagedTraining", "Training", "TrainingRun", "train"]
