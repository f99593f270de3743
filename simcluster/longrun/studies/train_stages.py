"""A run of stages: each is a run of its own, begun from the checkpoint that ended the one before."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.shown import Shown
from simcluster.documents.argument_types import checked
from simcluster.longrun.studies import staged_words
from simcluster.longrun.studies.build import asked_runs, section_of
from simcluster.longrun.studies.chunks import Workers, player_of
from simcluster.longrun.studies.staged import StagedRuns
from simcluster.longrun.studies.training_run import played_runs
from simcluster.scenario.given import ScenarioLike, scenario_of
from simcluster.scenario.run_section import tokens_of_stages
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.studies.sweep.sweep import Progress


def first_of_stage(number: int) -> int:
    """A stage's runs have numbers of their own, so that no two stages (from 0) draw the same: that of the first."""
    return 10**6 * number


@checked
def train_stages(
    scenario: ScenarioLike,
    *,
    played: int | None = None,
    workers: Workers = 1,
    store: str | Path | None = None,
    progress: Progress = lambda done, total, wrong: None,
) -> StagedTraining:
    """Play the runs of a scenario whose ``run`` has stages: run r of a stage goes on where run r of that before ended.

    Arguments as for ``train``.  InputError for a run without stages, or a stage that cannot be.
    """
    scenario = scenario_of(scenario, "train_stages")
    if not section_of(scenario).stages:
        raise InputError(f"{scenario.name}: the run has no stages; play it with simcluster.train")
    scenarios, count = stage_scenarios(scenario), asked_runs(scenario, played)
    with player_of(workers, store, progress) as player:
        stages = [played_runs(own, count, player, first=first_of_stage(number)) for number, own in enumerate(scenarios)]
    return StagedTraining(scenario, tuple(stages))


def stage_scenarios(scenario: Scenario) -> list[Scenario]:
    """The scenario of each stage: a run of so many tokens, with what the stage sets."""
    section = section_of(scenario)
    found = []
    counts = tokens_of_stages(section.stages, section.tokens)
    for number, (stage, tokens) in enumerate(zip(section.stages, counts, strict=True), 1):
        changes: dict[str, Any] = dict(stage.set)
        changes |= {"run.stages": None, "run.tokens": tokens, "name": f"{scenario.name}, stage {number}"}
        try:
            found.append(from_document(scenario.document(), changes))
        except InputError as error:
            told = str(error).removeprefix("override: ").replace("<document>: ", "")
            path = ("run", "stages", number - 1, "set")
            raise scenario.origin.document.error(path, f"stage {number}: {told}") from None
    return found


@dataclass(frozen=True)
class StagedTraining(StagedRuns, Shown):
    """Runs of stages that were played, and what is said of them."""

    def summary(self) -> str:
        """A run in half a minute of reading."""
        return staged_words.summary(self)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: CONTRACT.md, "A run of stages"."""
        return staged_words.document(self)
