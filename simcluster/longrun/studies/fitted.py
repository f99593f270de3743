"""The failures of a scenario's own job, fitted to its log: rates of the time in which it was exposed to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.units import DAY
from simcluster.documents.csv_numbers import Row
from simcluster.longrun.catalogue import failures_of
from simcluster.longrun.eventlog import is_own, log_in
from simcluster.longrun.fitting import CauseFit, FailureFits, fit_failures
from simcluster.longrun.outcome import MAINTENANCE, REGROWTH
from simcluster.longrun.replayed import exposed_of
from simcluster.longrun.run import LongRun
from simcluster.longrun.studies.build import long_run_of, section_of
from simcluster.longrun.studies.states import StepStates
from simcluster.scenario.run_failures import FailureSpec
from simcluster.scenario.scenario import Scenario

_RATES = {"mtbf", "per_1000_node_days", "per_year", "count", "within", "gpus", "law", "bad", "source", "name", "of"}


def fit_log(
    scenario: Scenario,
    rows: Sequence[Row],
    source: str,
    *,
    gpus: int | None = None,
    days: float | None = None,
    by: str | None = None,
) -> FailureFits:
    """Rates of the failures in the log of a scenario's job, a run's own or one of incidents.

    Each is of the time in which the job was exposed to it; what the scenario's failures say beside how often (device,
    repair, detection, effect) is kept.  ``days`` left out is all of a run's own log, and of others the scenario's
    ``run.days``.  InputError as in ``fit_failures``.
    """
    if "age" in rows[0].texts:
        raise InputError("a log of lives (age, end) is of parts, not of a job: leave --scenario out")
    section = section_of(scenario)
    if "count" in rows[0].texts and "time" not in rows[0].texts:
        return fit_failures(rows, source, gpus=gpus or scenario.gpus, days=days, by=by)
    log = log_in(rows, "log")
    own = is_own(rows)
    seconds = days * DAY if days is not None else log.end if own else section.days
    if seconds is None:
        raise InputError("for how long was the job watched? --days says it: the scenario ends by steps or tokens")
    run = long_run_of(scenario, StepStates(scenario))
    struck = [each for each in log.incidents if each.cause not in (MAINTENANCE, REGROWTH)] if own else None
    kept = rows
    if struck is not None:
        cells: list[dict[str, Any]] = [{"cause": each.cause, "time": each.time} for each in struck]
        kept = [Row(number, each, {**each, "time": repr(each["time"])}) for number, each in enumerate(cells, 1)]
    kept = [row for row in kept if row.texts["cause"].strip() not in (MAINTENANCE, REGROWTH)]
    if not kept:
        raise InputError(
            "the log has no failure that struck, and rates are fitted to failures; give a log with a row for "
            "each, or one of a longer run"
        )
    fits = fit_failures(kept, source, gpus=gpus or scenario.gpus, days=seconds / DAY, by=by)
    exposed = {stops: exposed_of(run, log, seconds, stops=stops) for stops in (True, False)}
    known = {spec.name: spec for spec in failures_of(section.failures)}
    note = (
        f"Of {seconds / DAY:.4g} d the job was exposed to what stops it for {exposed[True] / DAY:.4g} d, and trained "
        f"for {exposed[False] / DAY:.4g} d: rates are of that time.  Without ages there is no shape."
    )
    causes = tuple(_exposed(each, known.get(each.cause), run, exposed) for each in fits.causes)
    return replace(fits, causes=causes, total=replace(fits.total, watched=exposed[True]), notes=(note,))


def _exposed(fit: CauseFit, spec: FailureSpec | None, run: LongRun, exposed: dict[bool, float]) -> CauseFit:
    stops = next((cause.stops for cause in run.causes if cause.name == fit.cause), True)
    fit = replace(fit, watched=exposed[stops])
    if spec is None:
        return fit
    said = spec.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    notes = fit.notes
    if "law" in said or "bad" in said:
        notes = (*notes, "one rate stands for its ages and its bad batch: a log of a job does not tell them apart")
    known = {name: value for name, value in said.items() if name not in _RATES}
    return replace(fit, of=spec.of, known=known, notes=notes)
