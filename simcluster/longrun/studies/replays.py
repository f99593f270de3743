"""A log played again: what struck a job strikes once more, as things were and under another policy, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.shown import Shown
from simcluster.documents.argument_types import checked
from simcluster.documents.diagnostics import did_you_mean
from simcluster.documents.shipped import shipped_folder
from simcluster.longrun.eventlog import EventLog, read_log
from simcluster.longrun.replayed import replay_log
from simcluster.longrun.run import LongRun
from simcluster.longrun.simulation import simulate_runs
from simcluster.longrun.studies import words_replayed
from simcluster.longrun.studies.accounts import check_size
from simcluster.longrun.studies.build import asked_runs, long_run_of
from simcluster.longrun.studies.replayed_runs import ReplayedRuns
from simcluster.longrun.studies.states import StepStates
from simcluster.longrun.studies.training_run import TrainingRun
from simcluster.scenario.given import ScenarioLike, scenario_of
from simcluster.scenario.scenario import Scenario, from_document

_OF_THE_LOG = ("run.failures", "run.played")


@dataclass(frozen=True)
class FailureReplay(ReplayedRuns, Shown):
    """A log played again, and what is said of that."""

    def summary(self) -> str:
        """A replay in half a minute of reading."""
        return words_replayed.summary(self)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: CONTRACT.md, "Logs of a long run"."""
        return words_replayed.document(self)


@checked
def replay_failures(
    scenario: ScenarioLike,
    log: EventLog | str | Path,
    what_if: Mapping[str, Any] | None = None,
    *,
    played: int | None = None,
) -> FailureReplay:
    """What struck the job of a log strikes again: under the scenario's policy, and with the changes of ``what_if``
    ({"run.checkpoint.every": "10 min"}).

    ``log`` is one that ``read_log`` read, a file, or the name of one that ships.  Changes of ``run.failures`` say what
    the log's causes are, so they hold for both.  InputError for a log that is none, and for causes that are not the
    scenario's.
    """
    scenario = scenario_of(scenario, "replay_failures")
    name = Path(log).stem if isinstance(log, str | Path) else "log"
    log = log if isinstance(log, EventLog) else read_log(log_path(log))
    changes = dict(what_if or {})
    both = {path: value for path, value in changes.items() if path.startswith(_OF_THE_LOG)}
    policy = {path: value for path, value in changes.items() if path not in both}
    scenario = from_document(scenario.document(), both) if both else scenario
    count = asked_runs(scenario, played)
    states = StepStates(scenario)
    of = long_run_of(scenario, states)
    was = _again(scenario, states, of, of, log, count)
    then = None
    if policy:
        other = from_document(scenario.document(), policy)
        alike = _but_its_run(other) == _but_its_run(scenario)
        states = StepStates(other, states.asked) if alike else StepStates(other)
        then = _again(other, states, long_run_of(other, states), of, log, count)
    return FailureReplay(name, log, was, then, policy)


def _but_its_run(scenario: Scenario) -> dict[str, Any]:
    return {key: value for key, value in scenario.document().items() if key not in ("run", "name")}


def _again(scenario: Scenario, states: StepStates, run: LongRun, of: LongRun, log: EventLog, count: int) -> TrainingRun:
    """The runs of a scenario with a log's strikes."""
    struck = replay_log(run, log, of)
    check_size(struck, count)
    return TrainingRun(scenario, struck, dict(states.used), simulate_runs(struck, scenario.seed, count))


def log_path(name: str | Path) -> Path:
    """The path itself, or where the shipped log of that bare name lies."""
    path = Path(name)
    if path.exists() or path.suffix or len(path.parts) != 1:
        return path
    known = {each.stem: each for each in sorted((shipped_folder("scenarios") / "logs").glob("*.csv"))}
    if path.name in known:
        return known[path.name]
    raise InputError(
        f"{name}: no such file, and no shipped log{did_you_mean(path.name, known)}; shipped: {', '.join(known)}"
    )
