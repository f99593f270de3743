"""Runs of one stage that were played: what comes of a scenario's ``run:`` section, as numbers, words and JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simcluster.base.shown import Shown
from simcluster.longrun.ending import check_end
from simcluster.longrun.studies import words
from simcluster.longrun.studies.build import long_run_of, section_of
from simcluster.longrun.studies.chunks import RunPlayer
from simcluster.longrun.studies.energy import draw_in
from simcluster.longrun.studies.played import PlayedRuns
from simcluster.longrun.studies.states import StepStates
from simcluster.scenario.scenario import Scenario


def played_runs(
    scenario: Scenario, count: int, player: RunPlayer, *, first: int = 0, states: StepStates | None = None
) -> TrainingRun:
    """So many runs of a scenario, from that number on; ``states`` are those of its cluster, if some were played."""
    draw_in(scenario.cluster.device.name, section_of(scenario).power)  # what is wrong there is said first
    states = StepStates(scenario) if states is None else states
    run = long_run_of(scenario, states)
    check_end(run)
    outcomes = player.play({"": run}, scenario.seed, count, first)[""]
    return TrainingRun(scenario, run, dict(states.used), outcomes, states.result, first, tuple(states.notes))


@dataclass(frozen=True)
class TrainingRun(PlayedRuns, Shown):
    """Runs that were played, and what is said of them."""

    def summary(self) -> str:
        """A run in half a minute of reading."""
        return words.summary(self)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: CONTRACT.md, "A run of weeks"."""
        return words.document(self)


Training = TrainingRun
"""A shorter name; ``scenario.sections.Training`` is the section of a document."""

__all__ = ["Training", "TrainingRun", "played_runs"]
