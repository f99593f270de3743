"""Fits of failure rates and Weibull shapes to a failure log, with intervals, for a run's ``failures`` section.

A log has a row for each failure (``cause``, ``time``), or a cause and its ``count``, or a row for each life of a part:
``age`` at its ``end`` (failed, or censored: still alive when the watch ended), ``since`` which age it was watched.
Rates have exact Poisson intervals; lives a Weibull by maximum likelihood, taken where it beats the exponential.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from simcluster.base.errors import InputError
from simcluster.base.units import DAY, is_number
from simcluster.documents.csv_tables import CsvRow
from simcluster.documents.diagnostics import did_you_mean
from simcluster.longrun.closed_forms import poisson_interval
from simcluster.longrun.event_log import parse_log_seconds
from simcluster.longrun.part_lifetimes import ObservedLifetimes, WeibullFit

FEW_FAILURES = 10
"""Number of failures below which a rate is little more than an order of magnitude."""
_BEATS = 6.635 / 2  # log-likelihood: chi-squared of one degree of freedom, 1 %
_ENDS = {**dict.fromkeys(("failed", "dead", "true", "1", "yes"), True),
         **dict.fromkeys(("censored", "alive", "false", "0", "no"), False)}  # fmt: skip


@dataclass(frozen=True)
class CauseFit:
    """Fitted failure rate of one cause in one batch of parts, from ``count`` failures in ``watched`` seconds.

    The seconds are those of the job, or of all parts together. ``low`` to ``high`` is the 95 % interval of the count;
    ``lives`` is the Weibull distribution of part lifetimes where ages are known.
    """

    cause: str
    batch: str
    device_kind: str
    count: float
    watched: float
    low: float
    high: float
    lives: WeibullFit | None
    oldest: tuple[float, float]
    notes: tuple[str, ...]
    further_keys: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of the cause in a run's ``failures``."""

    @property
    def name(self) -> str:
        """Cause's name, followed by the batch, if any."""
        return f"{self.cause}, {self.batch}" if self.batch else self.cause

    @property
    def rate(self) -> float:
        """Failure rate (1/s)."""
        return self.count / self.watched

    @property
    def law(self) -> str:
        """Name of the lifetime distribution that fits better: "weibull" or "exponential"."""
        return "weibull" if self.lives is not None and self.lives.likelihood_gain > _BEATS else "exponential"


@dataclass(frozen=True)
class FailureLogFit:
    """Failure rates fitted to a log, by cause and in total; logs of part ages have no ``gpus`` and ``seconds``."""

    causes: tuple[CauseFit, ...]
    total: CauseFit
    gpus: int | None
    seconds: float | None
    source: str
    notes: tuple[str, ...]

    def to_failures_section(self) -> list[dict[str, Any]]:
        """Return the ``failures`` section of a run, omitting causes with no observed failure."""
        return [self._cause_document(each) for each in self.causes if each.count]

    def _cause_document(self, fit: CauseFit) -> dict[str, Any]:
        mode: dict[str, Any] = {"name": fit.name, "of": fit.device_kind}
        if self.gpus is not None and self.seconds is not None and fit.lives is None:
            mode |= {
                "count": int(fit.count) if fit.count == int(fit.count) else fit.count,
                "within": f"{fit.watched / DAY:.12g} d",
                "gpus": self.gpus,
            }
        elif fit.law == "weibull" and fit.lives is not None:
            young, old = fit.oldest
            ages = {"youngest": f"{young / 3600:.6g} h", "oldest": f"{old / 3600:.6g} h"}
            law = {"kind": "weibull", "shape": round(fit.lives.shape, 4), **ages}
            mode |= {"mtbf": f"{fit.lives.mean / 3600:.6g} h", "law": law}
        else:
            mode["mtbf"] = f"{1 / fit.rate / 3600:.6g} h"
        return mode | {"source": self.source} | dict(fit.further_keys)


def fit_failures(
    rows: Sequence[CsvRow], source: str, *, gpus: int | None = None, days: float | None = None, by: str | None = None
) -> FailureLogFit:
    """Fit failure rates and Weibull shapes to a log's rows; ``by`` names the column that holds part batches."""
    columns = rows[0].texts
    for column in ("cause", *([by] if by else [])):
        if column not in columns:
            raise InputError(
                f"the log has no column {column!r}{did_you_mean(column, columns)}; it has {', '.join(columns)}; "
                "required: cause and time, cause and count, or cause, age and end; rename columns as in "
                "--columns cause=reason"
            )
    if "age" not in columns and (gpus is None or days is None):
        raise InputError("the observed time is unknown: set --gpus and --days, or give a log of lifetimes (age, end)")
    if days is not None and not (math.isfinite(days) and days > 0):
        raise InputError(f"--days {days:g}: the observed time must be positive")
    of = {row.texts.get("cause", "").strip(): row.texts["of"] for row in reversed(rows) if row.texts.get("of")}
    if "age" in columns:
        lives, causes, batches = _read_lifetimes(rows, by)
        cells = []
        for cause, batch in product(filter(None, dict.fromkeys(causes)), dict.fromkeys(batches)):
            here = np.array([each == batch for each in batches])
            ended = lives.failed & np.array([each == cause for each in causes])  # others are censored
            chosen = ObservedLifetimes(lives.age[here], ended[here], lives.since[here], lives.weight[here])
            cells.append(_fit_cause_to_lifetimes(chosen, cause, batch, of.get(cause, "gpu")))
        total = _fit_cause_to_lifetimes(lives, "all", "", "gpu")
        notes = [_LIVES]
        if by is not None:
            notes.append(f"Each {by} has a separate law: a run takes those of the {by} of its nodes.")
    else:
        assert gpus is not None
        assert days is not None
        counted = _read_failures_by_cause(rows, by)
        seconds = days * DAY
        cells = [_fit_cause_to_counts(each, key, gpus, seconds, of.get(key[0], "job")) for key, each in counted.items()]
        everything = [each for found in counted.values() for each in found]
        total = _fit_cause_to_counts(everything, ("all", ""), gpus, seconds, "job")
        notes = [
            f"{gpus:,} GPUs are assumed observed for all of {days:g} d.  Hours without training count as "
            "exposed: if the job trained 90 % of the time, each rate is 1/0.9 as high.  Counts have no ages, so no "
            "Weibull shape is fitted."
        ]
    ranked = sorted(cells, key=lambda each: -each.count)
    return FailureLogFit(tuple(ranked), total, gpus, None if days is None else days * DAY, source, tuple(notes))


# --- counts -----------------------------------------------------------------------------------------------------------

RowFailures = tuple[float, float, str]
"""Failures in a row of a log: (count, time (s; nan if unknown), device)."""


def _read_failures_by_cause(rows: Sequence[CsvRow], by: str | None) -> dict[tuple[str, str], list[RowFailures]]:
    found: dict[tuple[str, str], list[RowFailures]] = {}
    for row in rows:
        cause = row.texts.get("cause", "").strip()
        if not cause:
            raise InputError(f"row {row.number}: has no cause; write one, such as 'unknown'")
        time = row.cells.get("time")
        when = math.nan if time is None else parse_log_seconds(time, f"row {row.number}: time")
        seen = _failure_count(row), when, row.texts.get("device", "").strip()
        found.setdefault((cause, row.texts.get(by, "") if by else ""), []).append(seen)
    return found


def _failure_count(row: CsvRow) -> float:
    count = row.cells.get("count", 1)
    if not is_number(count) or count < 0:
        raise InputError(f"row {row.number}: count: {row.texts['count']!r} is not a number of failures (0 or more)")
    return float(count)


def _fit_cause_to_counts(
    failures: Sequence[RowFailures], kind: tuple[str, str], gpus: int, seconds: float, device: str
) -> CauseFit:
    times = [when for many, when, _ in failures for _ in range(round(many)) if not math.isnan(when)]
    if times and max(times) > seconds:
        last, watch = max(times) / DAY, seconds / DAY
        over = f"{kind[0]} at day {last:.4g} is after the end of observation, day {watch:g}"
        raise InputError(f"{over}: raise --days to {math.ceil(last)} or more, or remove later rows")
    notes = []
    if len(times) >= FEW_FAILURES:  # Laplace's test of failures coming more often with time: standard normal if not
        score = (float(np.mean(times)) / seconds - 0.5) * math.sqrt(12 * len(times))
        how = "more" if score > 0 else "less"
        if abs(score) > 2.58:
            notes.append(f"came {how} and {how} often (Laplace {score:+.1f}): one rate does not describe it")
    return _make_cause_fit(
        kind, device, sum(many for many, _, _ in failures), seconds, [*notes, *_defective_device_note(failures, gpus)]
    )


def _make_cause_fit(
    kind: tuple[str, str], device: str, count: float, watched: float, notes: Sequence[str],
    lives: WeibullFit | None = None, oldest: tuple[float, float] = (0.0, 0.0),
) -> CauseFit:  # fmt: skip
    low, high = poisson_interval(round(count))
    few = f"never observed: at most one in {watched / high / DAY:.3g} d (95 %)"
    if count:
        few = f"only {count:g} observed: the true rate is {low / count:.2f} to {high / count:.2f} times the fit (95 %)"
    notes = (*([few] if count < FEW_FAILURES else []), *notes)
    return CauseFit(*kind, device, count, watched, low, high, lives, oldest, notes)


def _defective_device_note(failures: Sequence[RowFailures], gpus: int) -> list[str]:
    from scipy.stats import poisson

    devices: dict[str, float] = {}
    for many, _, device in failures:
        if device not in ("", "job"):
            devices[device] = devices.get(device, 0.0) + many
    count = sum(devices.values())
    worst = max(devices, key=lambda name: devices[name], default="")
    if not worst or gpus * float(poisson.sf(devices[worst] - 1, count / gpus)) > 0.01:
        return []
    return [f"{devices[worst]:g} of {count:g} on {worst}: defective, or not cured by repair (bad: in failures)"]


_LIVES = (
    "Lifetimes are assumed independent; censored ones count up to the end of observation.  Parts removed before the "
    "log began are missing from it: add a column since, or early failures are missed."
)


def _read_lifetimes(rows: Sequence[CsvRow], by: str | None) -> tuple[ObservedLifetimes, list[str], list[str]]:
    ages, since, ended, weight = [], [], [], []
    for row in rows:
        where = f"row {row.number}"
        begun = row.cells.get("since")
        age = parse_log_seconds(row.cells["age"], f"{where}: age")
        since.append(0.0 if begun is None else parse_log_seconds(begun, f"{where}: since"))
        if age <= since[-1]:
            raise InputError(f"{where}: age: {row.texts['age']!r} must be more than 'since' (default: 0)")
        text = row.texts.get("end", "failed").strip().lower()
        if text not in _ENDS:
            raise InputError(f"{where}: end: {text!r} must be 'failed' or 'censored'")
        if _ENDS[text] and not row.texts["cause"].strip():
            raise InputError(f"{where}: has no cause; write one, such as 'unknown'")
        ages.append(age)
        ended.append(_ENDS[text])
        weight.append(_failure_count(row))
    lives = ObservedLifetimes(np.array(ages), np.array(ended), np.array(since), np.array(weight))
    causes = [row.texts["cause"].strip() if end else "" for row, end in zip(rows, ended, strict=True)]
    return lives, causes, [row.texts[by] if by else "" for row in rows]


def _fit_cause_to_lifetimes(lives: ObservedLifetimes, cause: str, batch: str, device: str) -> CauseFit:
    alive = lives.age[~lives.failed]
    notes = []
    law = None
    oldest = (float(alive.min()), float(alive.max())) if len(alive) else (0.0, 0.0)
    try:
        law = lives.fit_weibull()
    except InputError as problem:
        notes.append(f"no shape: {problem}")
    return _make_cause_fit((cause, batch), device, lives.failure_count, lives.observed_seconds, notes, law, oldest)
