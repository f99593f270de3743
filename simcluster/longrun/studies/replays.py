"""Replay of a failure log under the scenario's policy, and under a changed one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.errors import InputError
from simcluster.base.shown import Displayable
from simcluster.base.units import DAY, HOUR
from simcluster.documents.argument_types import checked
from simcluster.documents.diagnostics import did_you_mean
from simcluster.documents.shipped import builtin_folder
from simcluster.longrun.ending import check_simulation_size
from simcluster.longrun.eventlog import STANDS, EventLog, read_event_log
from simcluster.longrun.events.record import TRAINING
from simcluster.longrun.run import FATES, LongRun, Outcomes
from simcluster.longrun.simulation import simulate_runs
from simcluster.longrun.studies.build import build_long_run, number_of_runs
from simcluster.longrun.studies.logged_failures import logged_failures, standstill_seconds, with_logged_failures
from simcluster.longrun.studies.policies import paired_difference
from simcluster.longrun.studies.states import StepStates
from simcluster.longrun.studies.train import step_document
from simcluster.longrun.studies.training_run import TrainingRun
from simcluster.longrun.text import frame_row, frame_rows, json_value, make_frame
from simcluster.results.file import merge_assumptions
from simcluster.scenario.given import ScenarioLike, scenario_of
from simcluster.scenario.scenario import Scenario, from_document

if TYPE_CHECKING:
    import pandas as pd

_OF_THE_LOG = ("run.failures", "run.played")
_HOURS = ("productive", "lost", "checkpoint", "write", "verification", "validation", *FATES[1:])
_SAME = 1e-6


@dataclass(frozen=True)
class FailureReplay(Displayable):
    """Replayed failure log: runs under the scenario's policy (``as_it_was``) and under a changed ``what_if``.

    Run r of both has the same failures and the same draws; what a log does not state (how long a repair takes) is
    drawn.
    """

    name: str
    log: EventLog
    as_it_was: TrainingRun
    what_if: TrainingRun | None
    changed: Mapping[str, Any]

    @property
    def last(self) -> TrainingRun:
        """Simulated runs under the changed policy, or under the scenario's if nothing was changed."""
        return self.what_if or self.as_it_was

    @property
    def compared(self) -> dict[str, TrainingRun]:
        """Simulated runs of the replay by name: "as it was", and "what if" if something was changed."""
        return {"as it was": self.as_it_was} | ({"what if": self.what_if} if self.what_if else {})

    @property
    def assumed(self) -> tuple[str, ...]:
        """Assumptions that the replay depends on and the scenario does not state."""
        return merge_assumptions({name: run.assumed for name, run in self.compared.items()})

    @cached_property
    def logged(self) -> dict[str, float]:
        """Measures of the log itself, by name: days, failures, hours by activity, and steps if known."""
        log, run = self.log, self.as_it_was.run
        found = {"days": log.end / DAY, "strikes": float(len(logged_failures(run, log)))}
        if log.stands is None:
            timed = any(each.lasts > 0 for each in log.incidents)
            return found | ({"stood_h": standstill_seconds(run, log) / HOUR} if timed else {})
        for fate in STANDS:
            found[f"{fate}_h"] = sum(end - begin for begin, end, what, _ in log.stands if what == fate) / HOUR
        found["stood_h"] = sum(found[f"{fate}_h"] for fate in STANDS)
        first = next((row for row in log.rows if row.what == TRAINING and row.steps), None)
        if first is not None:
            last = max(log.rows, key=lambda row: row.end)
            begun, kept = run.pattern.spent_until("steps", np.array([first.at, last.at])).tolist()
            if abs(begun - first.steps) <= _SAME * first.steps:
                kept = min(kept, run.goal)
                found |= {"steps": kept, "goodput": kept * run.pattern.step / last.end}
        return found

    @cached_property
    def table(self) -> pd.DataFrame:
        """Table of the replay by measure: the log's value, the simulated means, and their paired difference.

        Measures are days, steps, goodput, strikes (failures), outages and hours of each time category. Columns are
        ``logged`` (nan if unknown), means of the runs ``as_it_was`` and ``what_if``, their ``difference``, run by run,
        and half of its 95 % interval (``half_width``; nan of a single run).
        """
        was, then = (_run_measures(each.outcomes) for each in (self.as_it_was, self.last))
        rows = []
        for measure, values in was.items():
            what_if = gap = half = math.nan
            if self.what_if is not None:
                what_if, gap = float(then[measure].mean()), float((then[measure] - values).mean())
                half = paired_difference(values, then[measure]).half_width if len(values) > 1 else math.nan
            rows.append((measure, self.logged.get(measure, math.nan), float(values.mean()), what_if, gap, half))
        return make_frame(rows, "measure logged as_it_was what_if difference half_width", "measure")

    @property
    def notes(self) -> Iterator[str]:
        """Notes on what the replay does not reproduce of the log, or does not know."""
        run, log = self.as_it_was.run, self.log
        struck = logged_failures(run, log)
        missed = len(struck) - frame_row(self.table, "strikes")["as_it_was"]
        stops = {cause.name for cause in run.causes if cause.stops}
        unknown = sum(each.cause in stops and math.isnan(each.lasts) for each in struck) if log.stands is None else 0
        if missed > 0.5:
            yield f"{missed:,.1f} of the failures occur after the run has ended"
        if unknown:
            yield f"for {unknown:,} failures the log has no standstill: the mean of a restart is used"
        if log.stands is not None and "goodput" not in self.logged:
            yield "the log has another step time or other checkpoints: its steps are unknown"
        if math.isfinite(run.until) and run.until > 1.01 * log.end:
            days, until = log.end / DAY, run.until / DAY
            yield f"the log ends after {days:.4g} days, the run after {until:.4g}: after that nothing fails"

    def to_dict(self) -> dict[str, Any]:
        """Return the replay as a JSON document (CONTRACT.md, "Logs of a long run")."""
        return {
            "name": self.as_it_was.scenario.name,
            "log": self.name,
            "strikes": len(logged_failures(self.as_it_was.run, self.log)),
            "log_days": self.log.end / DAY,
            "played": self.as_it_was.played,
            "what_if": dict(self.changed),
            "measures": json_value(frame_rows(self.table)),
            "assumed": list(self.assumed),
            "notes": list(self.notes),
        }


@checked
def replay_failures(
    scenario: ScenarioLike,
    log: EventLog | str | Path,
    what_if: Mapping[str, Any] | None = None,
    *,
    played: int | None = None,
) -> FailureReplay:
    """Replay a job's failure log under the scenario's policy, and with the changes in ``what_if``.

    For example {"run.checkpoint.every": "10 min"}. ``log`` is an event log, a file, or the name of a built-in
    log. Changes of ``run.failures`` describe the log's causes, so they hold for both. InputError for an
    invalid log, and for causes that the scenario does not have.
    """
    scenario = scenario_of(scenario, "replay_failures")
    name = Path(log).stem if isinstance(log, str | Path) else "log"
    log = log if isinstance(log, EventLog) else read_event_log(resolve_log_path(log))
    changes = dict(what_if or {})
    both = {path: value for path, value in changes.items() if path.startswith(_OF_THE_LOG)}
    policy = {path: value for path, value in changes.items() if path not in both}
    scenario = from_document(scenario.document(), both) if both else scenario
    count = number_of_runs(scenario, played)
    states = StepStates(scenario)
    original = build_long_run(scenario, states)

    def simulate_replay(scenario: Scenario, run: LongRun, states: StepStates) -> TrainingRun:
        struck = with_logged_failures(run, log, original)
        check_simulation_size(struck, count)
        return TrainingRun(scenario, struck, dict(states.used), simulate_runs(struck, scenario.seed, count))

    was, then = simulate_replay(scenario, original, states), None
    if policy:
        other = from_document(scenario.document(), policy)
        same_step = step_document(other) == step_document(scenario)
        states = StepStates(other, states.asked) if same_step else StepStates(other)
        then = simulate_replay(other, build_long_run(other, states), states)
    return FailureReplay(name, log, was, then, policy)


def resolve_log_path(name: str | Path) -> Path:
    """Return the path of a log file, given as a path or as the bare name of a built-in log."""
    path = Path(name)
    if path.exists() or path.suffix or len(path.parts) != 1:
        return path
    known = {each.stem: each for each in sorted((builtin_folder("scenarios") / "logs").glob("*.csv"))}
    if path.name in known:
        return known[path.name]
    raise InputError(
        f"{name}: no such file, and no built-in log{did_you_mean(path.name, known)}; built-in logs: {', '.join(known)}"
    )


def _run_measures(outcomes: Outcomes) -> dict[str, Any]:
    spent = outcomes.seconds_by_category()
    return {
        "days": outcomes.wall / DAY,
        "steps": outcomes.steps,
        "goodput": spent["productive"] / outcomes.wall,
        "strikes": outcomes.strikes.sum(axis=1).astype(float),
        "outages": outcomes.outages.sum(axis=1).astype(float),
        "stood_h": sum(spent[fate] for fate in STANDS) / HOUR,
        **{f"{fate}_h": spent[fate] / HOUR for fate in _HOURS},
    }
