"""A training run of weeks: a scenario's ``run:`` section played many times, and what came of that."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.longrun.ending import check_end
from simcluster.scenario.scenario import Scenario, load
from simcluster.studies.long_run import accounts, words
from simcluster.studies.long_run.build import long_run_of, section_of
from simcluster.studies.long_run.chunks import RunPlayer, Workers, player_of
from simcluster.studies.long_run.energy import draw_in
from simcluster.studies.long_run.played import PlayedRuns
from simcluster.studies.long_run.states import StepStates
from simcluster.studies.sweep.sweep import Progress


def train(
    scenario: Scenario | str,
    *,
    played: int | None = None,
    workers: Workers = 1,
    store: str | Path | None = None,
    progress: Progress = lambda done, total, wrong: None,
) -> TrainingRun:
    """Play the runs of a scenario: ``played`` of them (left out: as many as its ``run.played`` says).

    ``workers`` is a number of processes, "dask://HOST:PORT", or any concurrent.futures.Executor; the numbers are the
    same to the bit.  What is finished is kept in ``store`` (a file): the same call goes on there after a kill.
    InputError if the scenario has no run, or one that cannot be, or one of stages (``train_stages``).
    """
    scenario = load(scenario) if isinstance(scenario, str) else scenario
    section = section_of(scenario)
    if section.stages:
        raise InputError(f"{scenario.name}: the run has stages; play it with simcluster.train_stages")
    with player_of(workers, store, progress) as player:
        return played_runs(scenario, played or section.played, player)


def played_runs(scenario: Scenario, count: int, player: RunPlayer, *, first: int = 0) -> TrainingRun:
    """So many runs of a scenario, from that number on."""
    draw_in(scenario.cluster.device.name, section_of(scenario).power)  # what is wrong there is said first
    states = StepStates(scenario)
    run = long_run_of(scenario, states)
    check_end(run)
    accounts.check_size(run, count)
    outcomes = player.play({"": run}, scenario.seed, count, first)[""]
    return TrainingRun(scenario, run, dict(states.asked), outcomes, states.result, first, tuple(states.notes))


@dataclass(frozen=True)
class TrainingRun(PlayedRuns):
    """Runs that were played, and what is said of them."""

    def summary(self) -> str:
        """A run in half a minute of reading."""
        return words.summary(self)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: CONTRACT.md, "A run of weeks"."""
        return words.document(self)


Training = TrainingRun
"""A shorter name; ``scenario.sections.Training`` is the section of a document."""

__all__ = ["Training", "TrainingRun", "train"]
