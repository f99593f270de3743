"""Failure logs as input: replacing a run's random failures by logged ones, and fitting failure rates.

A what-if keeps the failures and changes the policy: the interval, the restart, the spares. A failure occurs at the same
*exposed* second (``run``) of its cause: time in which the job stood still adds none, whether it stood for long, as in
the log, or not, as in the what-if. After the last row nothing fails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.units import DAY
from simcluster.documents.csv_tables import CsvRow
from simcluster.documents.diagnostics import did_you_mean
from simcluster.longrun.event_log import EventLog, LoggedFailure, is_simulated_log, parse_event_log
from simcluster.longrun.failure_catalogue import resolve_failure_causes
from simcluster.longrun.failure_fit import FailureLogFit, fit_failures
from simcluster.longrun.long_run import MAINTENANCE, REGROWTH, TIME_TOLERANCE, LongRun, RecordedFailures
from simcluster.longrun.studies.cluster_states import ClusterStateSimulator
from simcluster.longrun.studies.run_builder import build_long_run, require_run_section
from simcluster.scenario.scenario import Scenario

_APART = 1e-3  # seconds between two failures that a log has at one instant


def replace_failures_by_log(run: LongRun, log: EventLog, of: LongRun | None = None) -> LongRun:
    """Return the run with a log's failures instead of random failures.

    ``of`` is the run that the log was kept of (default: this one): it states which parts of its restarts were exposed,
    and, where a log has no ``lasts`` of a stop, how long the job stood: the mean of its detection and restart.
    InputError for causes that the run does not have, and for a log without any.
    """
    struck = list_failures_of_log(run, log)
    when = np.array([each.time for each in struck])
    stop, every = (_exposed_seconds_at(when, _list_standstills(of or run, log, stops=stops)) for stops in (True, False))
    causes = []
    for cause in run.causes:
        times = stop if cause.stops_job else every
        own = [number for number, each in enumerate(struck) if each.cause == cause.name]
        at, lasts = tuple(times[own].tolist()), tuple(struck[number].lasts for number in own)
        known = RecordedFailures(at, () if cause.stops_job or np.isnan(lasts).all() else lasts)
        rate = len(own) / max(float(times[-1]), _APART)
        causes.append(replace(cause, rate=rate, part_lifetimes=None, defective_batch=None, failure_log=known))
    return replace(run, causes=tuple(causes))


def list_failures_of_log(run: LongRun, log: EventLog) -> list[LoggedFailure]:
    """Return a log's failures, without planned maintenance; InputError if there are none or a cause is unknown."""
    known = [cause.name for cause in run.causes]
    struck = [each for each in log.failures if each.cause not in (MAINTENANCE, REGROWTH)]
    strange = next((each.cause for each in struck if each.cause not in known), None)
    if strange is not None or not struck:
        what = "has no failures" if strange is None else f"has unknown cause {strange!r}{did_you_mean(strange, known)}"
        raise InputError(
            f"the log {what}; the run's causes are {', '.join(known) or 'none'} (run.failures; add others under 'also')"
        )
    return struck


def exposed_seconds_of_log(run: LongRun, log: EventLog, seconds: float, *, stops: bool) -> float:
    """Return the time (s) in a log's first ``seconds`` in which failures could occur: all, or job-stopping ones."""
    return float(_exposed_seconds_at(np.array([seconds]), _list_standstills(run, log, stops=stops))[0])


def _list_standstills(run: LongRun, log: EventLog, *, stops: bool) -> list[tuple[float, float]]:
    """Return a log's (begin, end) intervals in which no failure can occur, or none that stops the job (``stops``)."""
    if log.standstills is not None:
        parts = [part.name for part in run.restart if part.exposed and stops]
        return [(b, e) for b, e, what, which in log.standstills if what != "restart" or which not in parts]
    restart = sum(part.storage.mean for part in run.restart)
    exposed = sum(part.storage.mean for part in run.restart if part.exposed) if stops else 0.0
    # assumed standstill where the log has none; planned work has no cause
    default = restart + (run.maintenance.lasts if run.maintenance is not None else 0.0)
    known = {
        cause.name: cause.detect.mean + restart if cause.stops_job else cause.lasts.mean
        for cause in run.causes
        if cause.effect in ("stop", "pause")
    }
    restarts = {cause.name: cause.stops_job for cause in run.causes}
    harmless = restarts.keys() - known.keys()
    found = []
    for each in log.failures:
        if each.cause not in harmless:
            stood = known.get(each.cause, default) if math.isnan(each.lasts) else each.lasts
            found.append((each.time, each.time + max(0.0, stood - exposed * restarts.get(each.cause, True))))
    return found


def _exposed_seconds_at(instants: Floats, stands: Sequence[tuple[float, float]]) -> Floats:
    """Return the exposed seconds at each instant, excluding intervals ``stands``; both ascend."""
    passed, until, joined = 0.0, 0.0, []
    for begin, end in sorted(stands):
        if end > until:
            joined.append((max(begin, until), end))
            until = end
    found, place, last = [], 0, -math.inf
    for instant in instants.tolist():
        while place < len(joined) and joined[place][1] <= instant:
            passed += joined[place][1] - joined[place][0]
            place += 1
        inside = max(0.0, instant - joined[place][0]) if place < len(joined) else 0.0
        exposed = instant - passed - inside
        last = exposed if exposed > last + TIME_TOLERANCE else last + _APART
        found.append(last)
    return np.array(found)


# --- rates of the causes of a scenario's own job ----------------------------------------------------------------------

_RATES = {"mtbf", "per_1000_node_days", "per_year", "count", "within", "gpus", "law", "bad", "source", "name", "of"}


def fit_scenario_log(
    scenario: Scenario,
    rows: Sequence[CsvRow],
    source: str,
    *,
    gpus: int | None = None,
    days: float | None = None,
    by: str | None = None,
) -> FailureLogFit:
    """Fit failure rates to a log of a scenario's job; the log comes from a simulated run or a real one.

    Each rate is per exposed time; everything else about the scenario's failures (device, repair, detection, effect) is
    kept. ``days`` defaults to all of a simulated run's log, and for others to the scenario's ``run.days``. InputError
    as in ``fit_failures``.
    """
    if "age" in rows[0].texts:
        raise InputError("a log of part lifetimes (age, end) does not belong to a job; remove --scenario")
    section = require_run_section(scenario)
    if "count" in rows[0].texts and "time" not in rows[0].texts:
        return fit_failures(rows, source, gpus=gpus or scenario.gpus, days=days, by=by)
    log = parse_event_log(rows, "log")
    own = is_simulated_log(rows)
    seconds = days * DAY if days is not None else log.end if own else section.days
    if seconds is None:
        raise InputError("the observed time is unknown, as the scenario ends by steps or tokens: set --days")
    run = build_long_run(scenario, ClusterStateSimulator(scenario))
    planned = (MAINTENANCE, REGROWTH)
    kept = [row for row in rows if not own and row.texts["cause"].strip() not in planned]
    for each in log.failures if own else ():
        if each.cause not in planned:
            cells: dict[str, Any] = {"cause": each.cause, "time": each.time}
            kept.append(CsvRow(len(kept) + 1, cells, {"cause": each.cause, "time": repr(each.time)}))
    if not kept:
        raise InputError(
            "the log has no failures to fit rates to; give a log with a row per failure, or of a longer run"
        )
    fits = fit_failures(kept, source, gpus=gpus or scenario.gpus, days=seconds / DAY, by=by)
    exposed = {stops: exposed_seconds_of_log(run, log, seconds, stops=stops) for stops in (True, False)}
    specs = {spec.name: spec for spec in resolve_failure_causes(section.failures)}
    stops = {cause.name: cause.stops_job for cause in run.causes}
    causes = []
    for fit in fits.causes:
        spec = specs.get(fit.cause)
        fit = replace(fit, watched=exposed[stops.get(fit.cause, True)])
        if spec is not None:
            said = spec.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
            one = "one rate covers part ages and defective nodes, which the log of a job does not separate"
            notes = (*fit.notes, one) if "law" in said or "bad" in said else fit.notes
            known = {name: value for name, value in said.items() if name not in _RATES}
            fit = replace(fit, device_kind=spec.of, further_keys=known, notes=notes)
        causes.append(fit)
    note = (
        f"Of {seconds / DAY:.4g} d the job was exposed to stops for {exposed[True] / DAY:.4g} d, and trained "
        f"for {exposed[False] / DAY:.4g} d: rates are of that time.  Without ages there is no shape."
    )
    return replace(fits, causes=tuple(causes), total=replace(fits.total, watched=exposed[True]), notes=(note,))
