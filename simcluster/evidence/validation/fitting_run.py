"""Fits of model constants to measured rows, cross-validated on groups of rows excluded from the fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import starmap
from pathlib import Path

import numpy as np

from simcluster.base.errors import InputError
from simcluster.evidence.validation.fitting import FitDeclaration, FitFile, FittedConstant
from simcluster.evidence.validation.fitting_rows import FitSample, load_fit_samples
from simcluster.evidence.validation.fitting_search import (
    ConstantPoint,
    CrossValidationFold,
    RowResponses,
    SimulateRows,
    search_constants,
    simulate_measured_row,
)
from simcluster.evidence.validation.step_studies import MissingTable
from simcluster.evidence.validation.study_runs import worker_pool

FOLD_KEYS = ("model", "scale", "study")

Progress = Callable[[str, str], object]
"""Called with a fit's name and its current activity."""


@dataclass(frozen=True, slots=True)
class FitConstantResult:
    """Constant of a fit: values before the fit, in use now, and fitted, and the fitted value's standard error."""

    name: str
    declared: FittedConstant
    current: float
    value: float
    error: float | None
    at_bound: bool

    @property
    def relative_change(self) -> float:
        """Fitted value divided by the current value, minus 1."""
        return self.value / self.current - 1.0 if self.current else float("inf")


@dataclass(frozen=True, slots=True)
class FitRowResult:
    """Measured row of a fit: measured time (s), and times predicted with fitted, unfitted and current constants."""

    sample: FitSample
    measured: float
    fitted: float
    unfitted: float
    today: float

    @property
    def error(self) -> float:
        """Relative error of the time predicted with fitted constants: predicted / measured - 1."""
        return self.fitted / self.measured - 1.0


@dataclass(frozen=True, slots=True)
class CrossValidationResult:
    """Result of cross-validation by model, scale or study: every group is predicted by a fit to the others.

    ``error`` is the mean |error| over all rows, ``error_ratio`` its ratio to the error of the same rows when none is
    excluded. ``skipped`` states why there is no result.
    """

    group_key: str
    groups: int = 0
    rows: int = 0
    error: float = 0.0
    error_ratio: float = 0.0
    worst: str = ""
    skipped: str = ""
    values: tuple[tuple[str, tuple[float, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class FitEffort:
    """Size of a fit: number of distinct rows simulated, and number of points (sets of constants) tried.

    Between points rows are interpolated. ``error`` is the worst interpolation error of a row at the solution and its
    neighbours, before these were simulated; ``fold_error`` the same at the simulated folds of the cross-validation
    (None if there were none).
    """

    points: int = 0
    rows: int = 0
    error: float = 0.0
    fold_error: float | None = None


@dataclass(frozen=True, slots=True)
class FitOutcome:
    """Result of a fit, with residuals from simulations; ``skipped`` is the reason if the fit was not run."""

    name: str
    fit: FitDeclaration
    constants: tuple[FitConstantResult, ...] = ()
    rows: tuple[FitRowResult, ...] = ()
    cross_validation: tuple[CrossValidationResult, ...] = ()
    effort: FitEffort = FitEffort()
    converged: bool = False
    skipped: str = ""

    def errors(self, which: str = "fitted") -> list[float]:
        """Return each row's |predicted / measured - 1| with "fitted", "unfitted" or current ("today") constants."""
        return [abs(getattr(row, which) / row.measured - 1.0) for row in self.rows]

    def mean_error(self, which: str = "fitted") -> float:
        """Return the rows' mean absolute error with "fitted", "unfitted" or current ("today") constants."""
        return float(np.mean(self.errors(which)))


def run_fits(
    file: FitFile, names: Sequence[str], *, data: Path | None = None, workers: int = 1, cross_validate: bool = True,
    progress: Progress = lambda fit, what: None,
) -> list[FitOutcome]:  # fmt: skip
    """Run the named fits of a file, and return their results in the same order.

    All tables are read and all rows checked before anything is simulated. Raises InputError for a fit whose paths its
    rows lack, and for a row that cannot be predicted.
    """
    prepared = [(name, file.fits.fits[name], load_fit_samples(file, name, data)) for name in names]
    with worker_pool(simulate_measured_row, workers) as ask:
        return [
            FitOutcome(name, fit, skipped=samples.reason)
            if isinstance(samples, MissingTable)
            else _run_fit(file, name, fit, samples, ask, cross_validate, partial(progress, name))
            for name, fit, samples in prepared
        ]


def _run_fit(
    file: FitFile, name: str, fit: FitDeclaration, samples: list[FitSample], run: SimulateRows, cross_validate: bool,
    progress: Callable[[str], object],
) -> FitOutcome:  # fmt: skip
    try:
        today = _current_values(fit, samples)
        responses = RowResponses(fit, samples, run, progress)
        unfitted = tuple(constant.unfitted for constant in fit.constants.values())
        responses.simulate_first_points([unfitted, today])
        folds = {by: _make_folds(by, samples, len(unfitted)) for by in FOLD_KEYS} if cross_validate else {}
        usable = [fold for each in folds.values() if not isinstance(each, str) for fold in each if fold.remaining_rows]
        found = search_constants(responses, usable)
        columns = [responses.simulate_point(values) for values in (found.solution.values, unfitted, today)]
    except InputError as problem:
        raise file.fit_error(name, problem) from None
    rows = tuple(
        FitRowResult(sample, fitted[1], fitted[0], bare[0], now[0])
        for sample, fitted, bare, now in zip(samples, *columns, strict=True)
    )
    constants = tuple(starmap(FitConstantResult, zip(
        fit.constants, fit.constants.values(), today, found.solution.values, found.solution.errors,
        found.solution.at_bound, strict=True,
    )))  # fmt: skip
    effort = FitEffort(responses.num_points, responses.num_distinct_rows, found.error, found.fold_error)
    outcome = FitOutcome(name, fit, constants, rows, (), effort, found.converged)
    values = {(fold.group_key, fold.group): each for fold, each in zip(usable, found.folds, strict=True)}
    error = outcome.mean_error()
    left_out = (
        CrossValidationResult(by, skipped=each)
        if isinstance(each, str)
        else _cross_validate(by, each, values, unfitted, responses, error)
        for by, each in folds.items()
    )
    return replace(outcome, cross_validation=tuple(left_out))


def _current_values(fit: FitDeclaration, samples: Sequence[FitSample]) -> tuple[float, ...]:
    found = []
    for name, constant in fit.constants.items():
        values = [(each.label, each.run.current_value(path)) for each in samples for path in constant.path]
        first, *others = values
        for label, value in others:
            if value != first[1]:
                raise InputError(f"{name} is {first[1]:g} in {first[0]}, but {value:g} in {label}; use one value")
        found.append(first[1])
    return tuple(found)


def _make_folds(key: str, samples: Sequence[FitSample], num_constants: int) -> tuple[CrossValidationFold, ...] | str:
    """Return cross-validation folds by model, scale or study, or the reason why cross-validation is impossible."""
    groups: dict[str, list[int]] = {}
    for place, sample in enumerate(samples):
        groups.setdefault(getattr(sample, key), []).append(place)
    if len(groups) < 2 and key != "study":
        return "no formula defines the groups" if "" in groups else "all rows are in one group"
    folds = []
    for group, out in groups.items():
        others = tuple(place for place in range(len(samples)) if place not in out)
        if others and len(others) <= num_constants:
            return f"without {group!r}, {len(others)} rows are too few for a fit"
        folds.append(CrossValidationFold(key, group, tuple(out), others))
    return tuple(folds)


def _cross_validate(
    key: str, folds: Sequence[CrossValidationFold], values: Mapping[tuple[str, str], ConstantPoint],
    unfitted: ConstantPoint, responses: RowResponses, fitted: float,
) -> CrossValidationResult:  # fmt: skip
    """Predict each group of rows with constants fitted to the other groups (unfitted if there is one study)."""
    used = {fold.group: values.get((key, fold.group), unfitted) for fold in folds}
    predict = responses.interpolate_residuals
    errors = {fold.group: np.abs(np.expm1(predict(used[fold.group])[list(fold.excluded_rows)])) for fold in folds}
    rows = np.concatenate(list(errors.values()))
    error = float(np.mean(rows))
    worst = max(errors, key=lambda group: float(errors[group].mean()))
    return CrossValidationResult(
        key, len(folds), len(rows), error, error / fitted if fitted else float("inf"),
        f"{worst} ({errors[worst].mean():.1%})", values=tuple(used.items()),
    )  # fmt: skip
