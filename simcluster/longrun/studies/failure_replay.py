"""Replay of a real job's failure log: simulates the same failures under the scenario's and a changed policy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.display import Displayable
from simcluster.base.errors import InputError
from simcluster.base.units import DAY, HOUR
from simcluster.documents.argument_types import check_arguments
from simcluster.documents.builtin_documents import builtin_folder
from simcluster.documents.diagnostics import did_you_mean
from simcluster.longrun.event_log import STANDS, EventLog, read_event_log
from simcluster.longrun.events.run_record import TRAINING
from simcluster.longrun.long_run import FATES, LongRun, RunOutcomes
from simcluster.longrun.run_feasibility import check_simulation_size
from simcluster.longrun.simulation import simulate_runs
from simcluster.longrun.studies import logged_failures
from simcluster.longrun.studies.cluster_states import ClusterStateSimulator
from simcluster.longrun.studies.policy_bench import paired_difference
from simcluster.longrun.studies.run_builder import build_long_run, resolve_run_count
from simcluster.longrun.studies.training import document_without_run
from simcluster.longrun.studies.training_run import TrainingRun
from simcluster.longrun.text_formats import make_frame, row_to_dict, rows_to_dicts, to_json_value
from simcluster.results.result_file import merge_assumptions
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.scenario.scenario_arguments import ScenarioLike, to_scenario

if TYPE_CHECKING:
    import pandas as pd

_OF_THE_LOG = ("run.failures", "run.played")
_HOURS = ("productive", "lost", "checkpoint", "write", "verification", "validation", *FATES[1:])
_SAME = 1e-6


@dataclass(frozen=True)
class FailureReplay(Displayable):
    """Replayed failure log: runs under the scenario's policy, and under a changed policy (``what_if``) if given.

    Run r of both has the same failures and the same draws; what a log does not state (how long a repair takes) is
    drawn.
    """

    name: str
    log: EventLog
    as_it_was: TrainingRun
    what_if: TrainingRun | None
    changes: Mapping[str, Any]

    @property
    def last_training(self) -> TrainingRun:
        """Simulated runs under the changed policy, or under the scenario's policy if nothing was changed."""
        return self.what_if or self.as_it_was

    @property
    def trainings_by_name(self) -> dict[str, TrainingRun]:
        """Simulated runs by policy name: "as it was" (the scenario's) and, if changed, "what if"."""
        return {"as it was": self.as_it_was} | ({"what if": self.what_if} if self.what_if else {})

    @property
    def assumed(self) -> tuple[str, ...]:
        """Assumptions that the replay depends on but the scenario does not state."""
        return merge_assumptions({name: run.assumed for name, run in self.trainings_by_name.items()})

    @cached_property
    def measures_of_log(self) -> dict[str, float]:
        """Measures of the log: days, number of failures, hours by activity, and steps if the log has them."""
        log, run = self.log, self.as_it_was.run
        found = {"days": log.end / DAY, "strikes": float(len(logged_failures.list_failures_of_log(run, log)))}
        if log.standstills is None:
            timed = any(each.lasts > 0 for each in log.failures)
            trained = logged_failures.exposed_seconds_of_log(run, log, log.end, stops=False)
            return found | ({"stood_h": (log.end - trained) / HOUR} if timed else {})
        for fate in STANDS:
            found[f"{fate}_h"] = sum(end - begin for begin, end, what, _ in log.standstills if what == fate) / HOUR
        found["stood_h"] = sum(found[f"{fate}_h"] for fate in STANDS)
        first = next((row for row in log.rows if row.activity == TRAINING and row.steps), None)
        if first is not None:
            last = max(log.rows, key=lambda row: row.end)
            begun, kept = run.pattern.total_until("steps", np.array([first.at, last.at])).tolist()
            if abs(begun - first.steps) <= _SAME * first.steps:
                kept = min(kept, run.goal)
                found |= {"steps": kept, "goodput": kept * run.pattern.step / last.end}
        return found

    @cached_property
    def table(self) -> pd.DataFrame:
        """Table of the replay with a row per measure: the log's value, simulated means, and their paired difference.

        Measures are days, steps, goodput, strikes (failures), outages and hours of each time category. Columns are
        logged (nan if unknown), as_it_was and what_if (means of the runs), difference (mean over pairs of runs) and
        half_width (half of its 95 % interval; nan for a single run).
        """
        was, then = (_measures_of_runs(each.outcomes) for each in (self.as_it_was, self.last_training))
        rows = []
        for name, values in was.items():
            what_if = gap = half = math.nan
            if self.what_if is not None:
                what_if, gap = float(then[name].mean()), float((then[name] - values).mean())
                half = paired_difference(values, then[name]).half_width if len(values) > 1 else math.nan
            rows.append((name, self.measures_of_log.get(name, math.nan), float(values.mean()), what_if, gap, half))
        return make_frame(rows, "measure logged as_it_was what_if difference half_width", "measure")

    @property
    def notes(self) -> Iterator[str]:
        """Notes on log events that the replay does not reproduce, and on data that the log lacks."""
        run, log = self.as_it_was.run, self.log
        struck = logged_failures.list_failures_of_log(run, log)
        missed = len(struck) - row_to_dict(self.table, "strikes")["as_it_was"]
        stops = {cause.name for cause in run.causes if cause.stops_job}
        unknown = sum(one.cause in stops and math.isnan(one.lasts) for one in struck) if log.standstills is None else 0
        if missed > 0.5:
            yield f"{missed:,.1f} of the failures occur after the run has ended"
        if unknown:
            yield f"the log has no standstill time for {unknown:,} failures: the mean restart time is used"
        if log.standstills is not None and "goodput" not in self.measures_of_log:
            yield "the log has another step time or other checkpoints: its steps are unknown"
        if math.isfinite(run.until) and run.until > 1.01 * log.end:
            days, until = log.end / DAY, run.until / DAY
            yield f"the log ends after {days:.4g} days, the run after {until:.4g}: after that nothing fails"

    def to_dict(self) -> dict[str, Any]:
        """Return the replay as a JSON document (CONTRACT.md, "Logs of a long run")."""
        return {
            "name": self.as_it_was.scenario.name,
            "log": self.name,
            "strikes": len(logged_failures.list_failures_of_log(self.as_it_was.run, self.log)),
            "log_days": self.log.end / DAY,
            "played": self.as_it_was.played,
            "what_if": dict(self.changes),
            "measures": to_json_value(rows_to_dicts(self.table)),
            "assumed": list(self.assumed),
            "notes": list(self.notes),
        }


@check_arguments
def replay_failures(
    scenario: ScenarioLike,
    log: EventLog | str | Path,
    what_if: Mapping[str, Any] | None = None,
    *,
    played: int | None = None,
) -> FailureReplay:
    """Simulate a job's logged failures under the scenario's policy, and with the changes in ``what_if``.

    For example {"run.checkpoint.every": "10 min"}. ``log`` is an event log, a file, or the name of a built-in
    log. Changes of ``run.failures`` describe the log's causes, so they hold for both. InputError for an
    invalid log, and for causes that the scenario does not have.
    """
    scenario = to_scenario(scenario, "replay_failures")
    name = Path(log).stem if isinstance(log, str | Path) else "log"
    log = log if isinstance(log, EventLog) else read_event_log(resolve_log_path(log))
    changes = dict(what_if or {})
    both = {path: value for path, value in changes.items() if path.startswith(_OF_THE_LOG)}
    policy = {path: value for path, value in changes.items() if path not in both}
    scenario = from_document(scenario.document(), both) if both else scenario
    count = resolve_run_count(scenario, played)
    states = ClusterStateSimulator(scenario)
    original = build_long_run(scenario, states)

    def simulate_replay(scenario: Scenario, run: LongRun, states: ClusterStateSimulator) -> TrainingRun:
        struck = logged_failures.replace_failures_by_log(run, log, original)
        check_simulation_size(struck, count)
        return TrainingRun(scenario, struck, dict(states.used_times), simulate_runs(struck, scenario.seed, count))

    was, then = simulate_replay(scenario, original, states), None
    if policy:
        other = from_document(scenario.document(), policy)
        same_step = document_without_run(other) == document_without_run(scenario)
        states = ClusterStateSimulator(other, states.step_times) if same_step else ClusterStateSimulator(other)
        then = simulate_replay(other, build_long_run(other, states), states)
    return FailureReplay(name, log, was, then, policy)


def resolve_log_path(name: str | Path) -> Path:
    """Return the path of a log file, given a path or a built-in log's name."""
    path = Path(name)
    if path.exists() or path.suffix or len(path.parts) != 1:
        return path
    known = {each.stem: each for each in sorted((builtin_folder("scenarios") / "logs").glob("*.csv"))}
    if path.name in known:
        return known[path.name]
    raise InputError(
        f"{name}: no such file, and no built-in log{did_you_mean(path.name, known)}; built-in logs: {', '.join(known)}"
    )


def _measures_of_runs(outcomes: RunOutcomes) -> dict[str, Any]:
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
