"""Fits of model constants to measured rows, with cross-validation on groups of excluded rows."""

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
    Fold,
    RowResponses,
    SimulateRows,
    Values,
    search_constants,
    simulate_sample,
)
from simcluster.evidence.validation.step_studies import MissingTable
from simcluster.evidence.validation.study_runs import worker_pool

FOLD_KEYS = ("model", "scale", "study")

Progress = Callable[[str, str], object]
"""Called with a fit's name and its current activity."""


@dataclass(frozen=True, slots=True)
class FittedValue:
    """Constant of a fit: its unfitted, current and fitted value, and the standard error."""

    name: str
    declared: FittedConstant
    today: float
    value: float
    error: float | None
    at_bound: bool

    @property
    def relative_change(self) -> float:
        """Fitted value over current value, minus 1."""
        return self.value / self.today - 1.0 if self.today else float("inf")


@dataclass(frozen=True, slots=True)
class FitRow:
    """Measured row of a fit: measured time (s), and predictions with fitted, unfitted and current constants."""

    sample: FitSample
    measured: float
    fitted: float
    unfitted: float
    today: float

    @property
    def error(self) -> float:
        """Predicted over measured time, minus 1, with the fitted constants."""
        return self.fitted / self.measured - 1.0


@dataclass(frozen=True, slots=True)
class CrossValidation:
    """Result of cross-validation by model, scale or study: each group is predicted from the others.

    ``error`` is the mean |error| over all rows, ``ratio`` its ratio to the error of the same rows when none is left
    out. ``skipped`` states why there is no result.
    """

    by: str
    groups: int = 0
    rows: int = 0
    error: float = 0.0
    ratio: float = 0.0
    worst: str = ""
    skipped: str = ""
    values: tuple[tuple[str, tuple[float, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class FitEffort:
    """Size of a fit: the number of distinct rows that were simulated, and of constant values (points) tried.

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
    """Result of a fit, with simulated residuals of its rows; ``skipped`` states why there is none."""

    name: str
    fit: FitDeclaration
    constants: tuple[FittedValue, ...] = ()
    rows: tuple[FitRow, ...] = ()
    cross_validation: tuple[CrossValidation, ...] = ()
    effort: FitEffort = FitEffort()
    converged: bool = False
    skipped: str = ""

    def errors(self, which: str = "fitted") -> list[float]:
        """Return |predicted / measured - 1| of each row, with fitted, unfitted or current ("today") constants."""
        return [abs(getattr(row, which) / row.measured - 1.0) for row in self.rows]

    def mean_error(self, which: str = "fitted") -> float:
        """Return the mean absolute error of the rows with fitted, unfitted or current ("today") constants."""
        return float(np.mean(self.errors(which)))


def run_fits(
    file: FitFile, names: Sequence[str], *, data: Path | None = None, workers: int = 1, cross_validate: bool = True,
    progress: Progress = lambda fit, what: None,
) -> list[FitOutcome]:  # fmt: skip
    """Run the named fits of a file, in order, and return their results.

    All tables are read and all rows checked before anything is simulated. Raises InputError for a fit whose paths its
    rows lack, and for a row that cannot be predicted.
    """
    prepared = [(name, file.fits.fits[name], load_fit_samples(file, name, data)) for name in names]
    with worker_pool(simulate_sample, workers) as ask:
        return [
            FitOutcome(name, fit, skipped=samples.reason)
            if isinstance(samples, MissingTable)
            else _run_fit(file, name, fit, samples, ask, cross_validate, partial(progress, name))
            for name, fit, samples in prepared
        ]


def _run_fit(
    file: FitFile, name: str, fit: FitDeclaration, samples: list[FitSample], ask: SimulateRows, cross_validate: bool,
    progress: Callable[[str], object],
) -> FitOutcome:  # fmt: skip
    try:
        today = _current_values(fit, samples)
        responses = RowResponses(fit, samples, ask, progress)
        unfitted = tuple(constant.unfitted for constant in fit.constants.values())
        responses.simulate_first_points([unfitted, today])
        folds = {by: _make_folds(by, samples, len(unfitted)) for by in FOLD_KEYS} if cross_validate else {}
        fitted_folds = [fold for each in folds.values() if not isinstance(each, str) for fold in each if fold.others]
        found = search_constants(responses, fitted_folds)
        columns = [responses.simulate_point(values) for values in (found.whole.values, unfitted, today)]
    except InputError as problem:
        raise file.error(name, problem) from None
    rows = tuple(
        FitRow(sample, fitted[1], fitted[0], bare[0], now[0])
        for sample, fitted, bare, now in zip(samples, *columns, strict=True)
    )
    constants = tuple(starmap(FittedValue, zip(
        fit.constants, fit.constants.values(), today, found.whole.values, found.whole.errors, found.whole.at_bound,
        strict=True,
    )))  # fmt: skip
    effort = FitEffort(responses.num_points, responses.num_distinct_rows, found.error, found.fold_error)
    outcome = FitOutcome(name, fit, constants, rows, (), effort, found.converged)
    values, error = (
        {(fold.by, fold.group): each for fold, each in zip(fitted_folds, found.folds, strict=True)},
        outcome.mean_error(),
    )
    left_out = (
        CrossValidation(by, skipped=each)
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
                raise InputError(f"{name} is {first[1]:g} in {first[0]}, and {value:g} in {label}; rows must share it")
        found.append(first[1])
    return tuple(found)


def _make_folds(by: str, samples: Sequence[FitSample], constants: int) -> tuple[Fold, ...] | str:
    """Return the cross-validation folds by model, scale or study, or the reason why there are none."""
    groups: dict[str, list[int]] = {}
    for place, sample in enumerate(samples):
        groups.setdefault(getattr(sample, by), []).append(place)
    if len(groups) < 2 and by != "study":
        return "no formula defines the groups" if "" in groups else "all rows are in one group"
    folds = []
    for group, out in groups.items():
        others = tuple(place for place in range(len(samples)) if place not in out)
        if others and len(others) <= constants:
            return f"without {group!r} only {len(others)} rows are left"
        folds.append(Fold(by, group, tuple(out), others))
    return tuple(folds)


def _cross_validate(
    by: str, folds: Sequence[Fold], values: Mapping[tuple[str, str], Values], unfitted: Values, responses: RowResponses,
    fitted: float,
) -> CrossValidation:  # fmt: skip
    """Predict each group of rows with constants fitted on the others; a sole study with unfitted constants."""
    used = {fold.group: values.get((by, fold.group), unfitted) for fold in folds}
    errors = {fold.group: np.abs(np.expm1(responses.interpolate(used[fold.group])[list(fold.out)])) for fold in folds}
    rows = np.concatenate(list(errors.values()))
    error, worst = float(np.mean(rows)), max(errors, key=lambda group: float(errors[group].mean()))
    return CrossValidation(
        by, len(folds), len(rows), error, error / fitted if fitted else float("inf"),
        f"{worst} ({errors[worst].mean():.1%})", values=tuple(used.items()),
    )  # fmt: skip
