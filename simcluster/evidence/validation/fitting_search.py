"""Least-squares search for constants: row times are simulated at some points and interpolated in between.

For all rows, and for each fold of the cross-validation. The logarithm of a step's time is a smooth function of the
logarithm of a constant (a sum of times, some of which are proportional to its inverse), so a few points determine it. A
point is one value of every constant; all rows are simulated at a point, equal rows once. Between points their residuals
are interpolated by cubic radial basis functions with a linear part, through points of any number and position: with one
constant that is the natural cubic spline (Wendland, Scattered Data Approximation, 2005, chapter 8). Where one kind of
kernel is no longer limited by a constant there is a kink, and the interpolation is only as good as the points are near:
the search adds points there. The fit on all rows comes first: the solution is simulated and becomes a further point,
until the interpolation is off by at most ``TOLERANCE`` there and at neighbours by the fit's ``step`` (nearer ones, if
that is not enough), so that the slopes are those of a fit that simulates every trial. Then the folds of the
cross-validation are fitted without separate simulations, unless one leads far from all points: then all rows are
simulated there too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.evidence.calibration import least_squares
from simcluster.evidence.calibration.least_squares import FitParameter, FitSolution
from simcluster.evidence.validation.fitting import FitDeclaration
from simcluster.evidence.validation.fitting_rows import ConstantValues, FitSample, MeasuredRow, RowResult

ConstantPoint = tuple[float, ...]
"""One value of every constant of a fit, in their order: a point."""

SimulateRows = Callable[[Sequence[tuple[MeasuredRow, ConstantValues]]], Iterable[RowResult]]
"""Function that simulates runs with settings, in order."""

_CORNER = 0.7071  # distance from the middle of the bounds, in -1..1: Chebyshev's two nodes
_CORNER_DISTANCE = 0.3  # in -1..1
_MOST_CORNERS = 3  # constants; with more, one at a time is varied
MIN_POINT_DISTANCE = 0.02
"""Closest points used for interpolation, in steps of the fit: below it times are rough."""


def simulate_measured_row(task: tuple[MeasuredRow, ConstantValues]) -> RowResult:
    """Simulate one measured row of a fit with trial values of the constants; may run in a worker process."""
    run, settings = task
    return run.simulate(settings)


class RowResponses:
    """Predicted times of a fit's rows as a function of the constants, simulated on request and cached."""

    def __init__(
        self, fit: FitDeclaration, samples: Sequence[FitSample], run: SimulateRows, progress: Callable[[str], object]
    ) -> None:
        self.fit, self.samples = fit, samples
        self._ask, self._progress = run, progress
        self._first: dict[str, int] = {}  # index of the first of equal runs
        for place, sample in enumerate(samples):
            self._first.setdefault(sample.run.run_key, place)
        self._constants = [FitParameter(name, each.unfitted, *each.bounds) for name, each in fit.constants.items()]
        self._low, self._high = (
            self._search_values([getattr(each, end) for each in self._constants]) for end in ("low", "high")
        )
        self._known: dict[ConstantPoint, list[tuple[float, float]]] = {}
        self._inside: list[ConstantPoint] = []  # points within the bounds, used for interpolation
        self._surface: Callable[[Floats], Floats] | None = None

    @property
    def num_distinct_rows(self) -> int:
        """Number of distinct rows, each of which is simulated once for all rows equal to it."""
        return len(self._first)

    @property
    def num_points(self) -> int:
        """Number of simulated points (a point is a set of values for all constants)."""
        return len(self._known)

    def simulate_point(self, values: ConstantPoint) -> list[tuple[float, float]]:
        """Simulate all rows at a point; return each row's (predicted, measured) time (s), or raise InputError."""
        if values not in self._known:
            settings = tuple(
                (path, value * factor)
                for constant, value in zip(self.fit.constants.values(), values, strict=True)
                for path, factor in (*((path, 1.0) for path in constant.path), *constant.follow.items())
            )
            answers = self._ask([(self.samples[place].run, settings) for place in self._first.values()])
            at = ", ".join(f"{name} {value:.4g}" for name, value in zip(self.fit.constants, values, strict=True))
            coming, by = iter(answers), {}
            for row, run_key in enumerate(self._first, 1):  # report each row before waiting for it
                self._progress(f"point {self.num_points + 1} ({at}), row {row} of {self.num_distinct_rows}")
                by[run_key] = next(coming)
            self._known[values] = [sample.predicted_and_measured(by[sample.run.run_key]) for sample in self.samples]
            if self._is_within_bounds(values) and self.nearest_distance(values) > MIN_POINT_DISTANCE:
                self._inside.append(values)
                self._surface = None
        return self._known[values]

    def residuals(self, values: ConstantPoint) -> Floats:
        """Simulate all rows at a point; return each row's ln(predicted / measured)."""
        return np.array([np.log(predicted / measured) for predicted, measured in self.simulate_point(values)])

    def interpolate_residuals(self, values: Sequence[float]) -> Floats:
        """Return every row's ln(predicted / measured) at a point, interpolated between simulated points."""
        if self._surface is None:
            places = np.array([self._normalize(each) for each in self._inside])
            rows = np.array([self.residuals(each) for each in self._inside])
            self._surface = least_squares.make_rbf_interpolator(places, rows)
        found: Floats = self._surface(self._normalize(values)[None, :])[0]
        return found

    def add_point(self, values: ConstantPoint) -> float:
        """Simulate a point and add the times to the interpolation; return the worst row's interpolation error."""
        before = self.interpolate_residuals(values)
        return float(np.abs(np.expm1(before - self.residuals(values))).max())

    def best_point(self, rows: Sequence[int]) -> ConstantPoint:
        """Return the simulated point with the smallest mean absolute error of the selected rows."""
        return min(self._inside, key=lambda each: float(np.abs(self.residuals(each)[list(rows)]).mean()))

    def simulate_first_points(self, further: Sequence[ConstantPoint]) -> None:
        """Simulate the first points of a search: given points within bounds, the centre, and the corners.

        Corners close to given points are not simulated. With more than three constants there are too many corners; one
        constant is then varied at a time.
        """
        count = len(self.fit.constants)
        if count <= _MOST_CORNERS:
            around = list(product((-_CORNER, _CORNER), repeat=count))
        else:
            around = [
                tuple(side * (place == one) for place in range(count))
                for one in range(count)
                for side in (-_CORNER, _CORNER)
            ]
        middle = [(0.0,) * count] if count > 1 else []
        for values in further:
            if self._is_within_bounds(values):
                self.simulate_point(values)
        for place in (*middle, *around):
            if all(np.abs(self._normalize(each) - place).max() > _CORNER_DISTANCE for each in self._inside):
                seen = self._low + (self._high - self._low) * (np.array(place) + 1.0) / 2.0
                self.simulate_point(
                    tuple(each.from_search_coordinate(float(x)) for each, x in zip(self._constants, seen, strict=True))
                )

    def neighbour_points(self, values: ConstantPoint, width: float) -> list[tuple[ConstantPoint, ConstantPoint]]:
        """Return, for each constant, the two points that lie ``width`` steps of the fit below and above a point."""
        found = []
        for one, constant in enumerate(self._constants):
            here = constant.to_search_coordinate(values[one])
            low, high = (constant.from_search_coordinate(here + side * width * self.fit.step) for side in (-1.0, 1.0))
            found.append(((*values[:one], low, *values[one + 1 :]), (*values[:one], high, *values[one + 1 :])))
        return found

    def step_distances(self, one: Sequence[float], two: Sequence[float]) -> Floats:
        """Return the distance between two points for each constant, in steps of the fit."""
        return np.abs(self._search_values(one) - self._search_values(two)) / self.fit.step

    def nearest_distance(self, values: Sequence[float]) -> float:
        """Return the distance to the nearest simulated point, in steps of the fit (maximum over constants)."""
        return min((float(self.step_distances(values, each).max()) for each in self._inside), default=np.inf)

    def snap_to_point(self, values: ConstantPoint) -> ConstantPoint:
        """Return the nearest simulated point if close enough, else the original point."""
        near = min(self._inside, key=lambda each: float(self.step_distances(values, each).max()))
        return near if self.step_distances(values, near).max() <= MIN_POINT_DISTANCE else values

    def make_fit_parameters(self, values: Sequence[float]) -> list[FitParameter]:
        """Return the parameters of a least-squares search that starts at a point."""
        return [replace(each, start=value) for each, value in zip(self._constants, values, strict=True)]

    def _is_within_bounds(self, values: ConstantPoint) -> bool:
        return all(each.low <= value <= each.high for each, value in zip(self._constants, values, strict=True))

    def _search_values(self, values: Sequence[float]) -> Floats:
        return np.array([each.to_search_coordinate(value) for each, value in zip(self._constants, values, strict=True)])

    def _normalize(self, values: Sequence[float]) -> Floats:
        return 2.0 * (self._search_values(values) - self._low) / (self._high - self._low) - 1.0


TOLERANCE = 1e-3
"""Largest relative interpolation error of a row's time where it is used."""

_MAX_ROUNDS = 60
_NARROWEST = 1 / 16  # steps of the fit from the solution to its neighbours
_STEP_UNIT = 0.5  # steps of the fit
_ERROR_UNIT = 0.1  # standard errors
_NEAR_IN_STEPS = 3.0  # steps of the fit: folds closer to a point are not simulated
_DERIVATIVE_STEP = 0.1  # of the fit's step, for the derivatives of the search, which cost nothing
_MAX_EVALUATIONS = 100
_SEARCH_TOLERANCE = 1e-7
_NO_EFFECT = 1e-9


@dataclass(frozen=True, slots=True)
class CrossValidationFold:
    """Fold of a cross-validation: indices of the rows in the excluded group, and of the remaining rows."""

    group_key: str
    group: str
    excluded_rows: tuple[int, ...]
    remaining_rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConstantSearchResult:
    """Result of a search: constants fitted to all rows and to each fold, and interpolation errors.

    ``error`` is the worst row's at the solution and its neighbours, ``fold_error`` the worst row's at the simulated
    folds (None if all were near points); ``converged``: both are at most ``TOLERANCE``.
    """

    solution: FitSolution
    folds: tuple[ConstantPoint, ...]
    error: float
    fold_error: float | None
    converged: bool


def search_constants(responses: RowResponses, folds: Sequence[CrossValidationFold]) -> ConstantSearchResult:
    """Search for the constants that best fit all rows, and for each fold, all rows outside the excluded group."""
    whole, error, settled = _fit_all_rows(responses)
    found, fold_error = _fit_folds(responses, folds, whole.values, rounds=_MAX_ROUNDS * len(folds) if settled else 0)
    return ConstantSearchResult(
        whole, found, error, fold_error, settled and (fold_error or 0.0) <= TOLERANCE and whole.converged
    )


def _fit_all_rows(responses: RowResponses) -> tuple[FitSolution, float, bool]:
    """Fit all rows, and simulate each solution and its neighbours until the fit no longer changes."""
    every = range(len(responses.samples))
    width = 1.0
    centre: ConstantPoint | None = None
    error = nearby_error = np.inf
    for _ in range(_MAX_ROUNDS):
        found = _fit_interpolated(responses, every)
        points = responses.num_points
        found = replace(found, values=responses.snap_to_point(found.values))
        error = responses.add_point(found.values)
        if error > TOLERANCE and responses.num_points > points:
            continue
        if error > TOLERANCE or width < _NARROWEST:
            break
        if centre is not None and _relative_solution_change(responses, centre, found) <= 1.0:
            # no standard error for a constant without effect: interpolated rows show rounding
            errors = tuple(
                error if np.abs(responses.residuals(above) - responses.residuals(below)).max() > _NO_EFFECT else None
                for error, (below, above) in zip(found.errors, responses.neighbour_points(centre, width), strict=True)
            )
            return replace(found, errors=errors), max(error, nearby_error), True
        centre = found.values
        nearby_error = max(map(responses.add_point, chain.from_iterable(responses.neighbour_points(centre, width))))
        if nearby_error > TOLERANCE:
            centre, width = None, width / 2.0
    return found, max(error, nearby_error), False


def _relative_solution_change(responses: RowResponses, centre: ConstantPoint, found: FitSolution) -> float:
    """Return the largest change of a constant between two solutions; a value up to 1 is negligible."""
    pairs = zip(responses.make_fit_parameters(found.values), found.errors, strict=True)
    spread = np.array([(error or 0.0) / (each.start if each.low > 0 else each.high) for each, error in pairs])
    negligible = np.maximum(_STEP_UNIT, _ERROR_UNIT * spread / responses.fit.step)
    return float((responses.step_distances(found.values, centre) / negligible).max())


def _fit_folds(
    responses: RowResponses, folds: Sequence[CrossValidationFold], whole: ConstantPoint, *, rounds: int
) -> tuple[tuple[ConstantPoint, ...], float | None]:
    off: dict[int, float] = {}  # last errors of simulated folds
    found = [_fit_interpolated(responses, fold.remaining_rows, whole).values for fold in folds]
    for _ in range(rounds):
        far = {place: responses.nearest_distance(values) for place, values in enumerate(found)}
        unsure = [place for place in far if far[place] > _NEAR_IN_STEPS or off.get(place, 0.0) > TOLERANCE]
        if not unsure:
            break
        place = max(unsure, key=lambda each: far[each])
        off[place] = responses.add_point(found[place])
        found = [_fit_interpolated(responses, fold.remaining_rows, whole).values for fold in folds]
    return tuple(found), max(off.values(), default=None)


def _fit_interpolated(responses: RowResponses, rows: Sequence[int], start: ConstantPoint | None = None) -> FitSolution:
    """Fit the constants to interpolated row times by least squares, from the best simulated point and ``start``."""
    fit, places = responses.fit, list(rows)
    starts = dict.fromkeys([responses.best_point(places), *([start] if start else [])])

    def interpolated_residuals(values: ConstantPoint) -> Floats:
        found: Floats = responses.interpolate_residuals(values)[places]
        return found

    found = [
        least_squares.fit_least_squares(
            responses.make_fit_parameters(each), interpolated_residuals, loss=fit.loss,
            step=_DERIVATIVE_STEP * fit.step, max_tries=_MAX_EVALUATIONS, tolerance=_SEARCH_TOLERANCE,
        )
        for each in starts
    ]  # fmt: skip
    power = 2 if fit.loss == "squares" else 1
    return min(found, key=lambda each: float(np.mean(np.abs(each.residuals) ** power)))
