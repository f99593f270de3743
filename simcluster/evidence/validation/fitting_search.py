"""Least-squares search for the constants of a fit, on row times interpolated between simulated points.

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
from itertools import product

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.evidence.calibration.least_squares import FitParameter, FitSolution, least_squares, rbf_interpolator
from simcluster.evidence.validation.fitting import FitDeclaration
from simcluster.evidence.validation.fitting_rows import FitSample, RowResult, SampleRun, Settings

Values = tuple[float, ...]
"""One value of every constant of a fit, in their order: a point."""

SimulateRows = Callable[[Sequence[tuple[SampleRun, Settings]]], Iterable[RowResult]]
"""Function that simulates runs with settings, in order."""

_CORNER = 0.7071  # distance from the middle of the bounds, in -1..1: Chebyshev's two nodes
_CORNER_DISTANCE = 0.3  # in -1..1
_MOST_CORNERS = 3  # constants; with more, one at a time is varied
MIN_POINT_DISTANCE = 0.02
"""Closest points used for interpolation, in steps of the fit: below it times are rough."""


def simulate_sample(task: tuple[SampleRun, Settings]) -> RowResult:
    """Simulate a measured row of a fit with given values of the constants, here or in a worker process."""
    run, settings = task
    return run.simulate(settings)


class RowResponses:
    """Predicted times of a fit's rows as functions of its constants, simulated on request and cached."""

    def __init__(
        self, fit: FitDeclaration, samples: Sequence[FitSample], ask: SimulateRows, progress: Callable[[str], object]
    ) -> None:
        self.fit, self.samples = fit, samples
        self._ask, self._progress = ask, progress
        self._first: dict[str, int] = {}  # index of the first of equal runs
        for place, sample in enumerate(samples):
            self._first.setdefault(sample.run.run_key, place)
        self._constants = [FitParameter(name, each.unfitted, *each.bounds) for name, each in fit.constants.items()]
        self._low, self._high = (
            self._search_values([getattr(each, end) for each in self._constants]) for end in ("low", "high")
        )
        self._known: dict[Values, list[tuple[float, float]]] = {}
        self._inside: list[Values] = []  # points within the bounds, used for interpolation
        self._surface: Callable[[Floats], Floats] | None = None

    @property
    def num_distinct_rows(self) -> int:
        """Number of distinct rows that are simulated; the other rows equal one of them."""
        return len(self._first)

    @property
    def num_points(self) -> int:
        """Number of points (values of all constants) at which the rows were simulated."""
        return len(self._known)

    def simulate_point(self, values: Values) -> list[tuple[float, float]]:
        """Return (predicted, measured) time (s) of every row at a point; InputError if a row fails."""
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
            self._known[values] = [sample.compare(by[sample.run.run_key]) for sample in self.samples]
            if self._is_within_bounds(values) and self.nearest_distance(values) > MIN_POINT_DISTANCE:
                self._inside.append(values)
                self._surface = None
        return self._known[values]

    def residuals(self, values: Values) -> Floats:
        """Return ln(predicted / measured) of every row, simulated at a point."""
        return np.array([np.log(predicted / measured) for predicted, measured in self.simulate_point(values)])

    def interpolate(self, values: Sequence[float]) -> Floats:
        """Return ln(predicted / measured) of every row at a point, interpolated between simulated points."""
        if self._surface is None:
            places = np.array([self._normalize(each) for each in self._inside])
            rows = np.array([self.residuals(each) for each in self._inside])
            self._surface = rbf_interpolator(places, rows)
        found: Floats = self._surface(self._normalize(values)[None, :])[0]
        return found

    def check_point(self, values: Values) -> float:
        """Simulate a point and add it to the interpolation; return the worst row's interpolation error."""
        before = self.interpolate(values)
        return float(np.abs(np.expm1(before - self.residuals(values))).max())

    def best_point(self, rows: Sequence[int]) -> Values:
        """Return the simulated point with the smallest mean absolute error of the selected rows."""
        return min(self._inside, key=lambda each: float(np.abs(self.residuals(each)[list(rows)]).mean()))

    def simulate_first_points(self, further: Sequence[Values]) -> None:
        """Simulate the first points of a search: given ones within the bounds, the middle, and corners.

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
                    tuple(each.from_search(float(x)) for each, x in zip(self._constants, seen, strict=True))
                )

    def neighbours(self, values: Values, width: float) -> list[tuple[Values, Values]]:
        """Return the points below and above a point in each constant, by ``width`` of the fit's ``step``."""
        found = []
        for one, constant in enumerate(self._constants):
            here = constant.to_search(values[one])
            low, high = (constant.from_search(here + side * width * self.fit.step) for side in (-1.0, 1.0))
            found.append(((*values[:one], low, *values[one + 1 :]), (*values[:one], high, *values[one + 1 :])))
        return found

    def step_distances(self, one: Sequence[float], two: Sequence[float]) -> Floats:
        """Return the distance between two points in each constant, in steps of the fit."""
        return np.abs(self._search_values(one) - self._search_values(two)) / self.fit.step

    def nearest_distance(self, values: Sequence[float]) -> float:
        """Return the distance (in steps of the fit, largest over constants) to the nearest simulated point."""
        return min((float(self.step_distances(values, each).max()) for each in self._inside), default=np.inf)

    def snap_to_point(self, values: Values) -> Values:
        """Return the nearest simulated point if it is close enough, else the values unchanged."""
        near = min(self._inside, key=lambda each: float(self.step_distances(values, each).max()))
        return near if self.step_distances(values, near).max() <= MIN_POINT_DISTANCE else values

    def parameters(self, values: Sequence[float]) -> list[FitParameter]:
        """Return the parameters for a least-squares search that starts at these values."""
        return [replace(each, start=value) for each, value in zip(self._constants, values, strict=True)]

    def _is_within_bounds(self, values: Values) -> bool:
        return all(each.low <= value <= each.high for each, value in zip(self._constants, values, strict=True))

    def _search_values(self, values: Sequence[float]) -> Floats:
        return np.array([each.to_search(value) for each, value in zip(self._constants, values, strict=True)])

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
class Fold:
    """Fold of a cross-validation: the excluded group of rows (``out``), and the remaining rows, by index."""

    by: str
    group: str
    out: tuple[int, ...]
    others: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a search: constants fitted to all rows and to each fold, and interpolation errors.

    ``error`` is the worst row's at the solution and its neighbours, ``fold_error`` the worst row's at the simulated
    folds (None if all were near points); ``converged``: both are at most ``TOLERANCE``.
    """

    whole: FitSolution
    folds: tuple[Values, ...]
    error: float
    fold_error: float | None
    converged: bool


def search_constants(responses: RowResponses, folds: Sequence[Fold]) -> SearchResult:
    """Find the constants that fit all rows, and those without each fold; InputError if a row fails."""
    whole, error, settled = _fit_all_rows(responses)
    found, fold_error = _fit_folds(responses, folds, whole.values, rounds=_MAX_ROUNDS * len(folds) if settled else 0)
    return SearchResult(
        whole, found, error, fold_error, settled and (fold_error or 0.0) <= TOLERANCE and whole.converged
    )


def _fit_all_rows(responses: RowResponses) -> tuple[FitSolution, float, bool]:
    """Fit all rows, simulating the solution and its neighbours until neither changes the fit any more."""
    every, width = range(len(responses.samples)), 1.0
    centre: Values | None = None
    error = nearby_error = np.inf
    for _ in range(_MAX_ROUNDS):
        found, points = _fit_interpolated(responses, every), responses.num_points
        found = replace(found, values=responses.snap_to_point(found.values))
        error = responses.check_point(found.values)
        if error > TOLERANCE and responses.num_points > points:
            continue
        if error > TOLERANCE or width < _NARROWEST:
            break
        if centre is not None and _relative_move(responses, centre, found) <= 1.0:
            # no standard error for a constant without effect: interpolated rows show rounding
            errors = tuple(
                error if np.abs(responses.residuals(above) - responses.residuals(below)).max() > _NO_EFFECT else None
                for error, (below, above) in zip(found.errors, responses.neighbours(centre, width), strict=True)
            )
            return replace(found, errors=errors), max(error, nearby_error), True
        centre = found.values
        nearby_error = max(responses.check_point(each) for pair in responses.neighbours(centre, width) for each in pair)
        if nearby_error > TOLERANCE:
            centre, width = None, width / 2.0
    return found, max(error, nearby_error), False


def _relative_move(responses: RowResponses, centre: Values, found: FitSolution) -> float:
    """Return how far the solution moved in the constant that moved most; 1 or less is negligible."""
    spread = np.array(
        [
            0.0 if error is None else error / (each.start if each.low > 0 else each.high)
            for each, error in zip(responses.parameters(found.values), found.errors, strict=True)
        ]
    )
    return float(
        (
            responses.step_distances(found.values, centre)
            / np.maximum(_STEP_UNIT, _ERROR_UNIT * spread / responses.fit.step)
        ).max()
    )


def _fit_folds(
    responses: RowResponses, folds: Sequence[Fold], whole: Values, *, rounds: int
) -> tuple[tuple[Values, ...], float | None]:
    off: dict[int, float] = {}  # last errors of simulated folds
    found = [_fit_interpolated(responses, fold.others, whole).values for fold in folds]
    for _ in range(rounds):
        far = {place: responses.nearest_distance(values) for place, values in enumerate(found)}
        unsure = [place for place in far if far[place] > _NEAR_IN_STEPS or off.get(place, 0.0) > TOLERANCE]
        if not unsure:
            break
        place = max(unsure, key=lambda each: far[each])
        off[place] = responses.check_point(found[place])
        found = [_fit_interpolated(responses, fold.others, whole).values for fold in folds]
    return tuple(found), max(off.values(), default=None)


def _fit_interpolated(responses: RowResponses, rows: Sequence[int], start: Values | None = None) -> FitSolution:
    """Return the least-squares solution on interpolated rows, searched from the best point and ``start``."""
    fit, places = responses.fit, list(rows)
    starts = dict.fromkeys([responses.best_point(places), *([start] if start else [])])

    def interpolated_residuals(values: Values) -> Floats:
        found: Floats = responses.interpolate(values)[places]
        return found

    found = [
        least_squares(
            responses.parameters(each), interpolated_residuals, loss=fit.loss, step=_DERIVATIVE_STEP * fit.step,
            most=_MAX_EVALUATIONS, tolerance=_SEARCH_TOLERANCE,
        )
        for each in starts
    ]  # fmt: skip
    power = 2 if fit.loss == "squares" else 1
    return min(found, key=lambda each: float(np.mean(np.abs(each.residuals) ** power)))
