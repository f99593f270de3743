"""The constants of a fit by least squares on interpolated rows, on all of them and with groups left out.

The logarithm of a step's time goes smoothly with the logarithm of a constant (a sum of times, some of which go as its
inverse), so a few points tell all of it.  A point is one value of every constant; at a point all rows are simulated,
rows that are played alike once.  Between points their residuals are interpolated by cubic radial basis functions with
a linear part, through the points, whose number and place are free: with one constant that is the natural cubic spline
(Wendland, Scattered Data Approximation, 2005, chapter 8).  Where one kind of kernel stops being bound by what the
constant says there is a kink, and the interpolation is only as good as the points are near: the search adds them there.

First all rows: what is found is simulated, which is one point more to interpolate from, until the interpolation was off
by at most ``TOLERANCE`` where it led, and at points beside that by the fit's ``step`` (nearer ones, if that is not
enough), which make its slopes those of a fit that simulates at every trial.  Then the folds of the cross-validation,
with no simulation of their own, unless one leads far from all points: then all rows are simulated there too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.evidence.calibration.least_squares import Parameter, Solution, least_squares, rbf_interpolator
from simcluster.evidence.validation.fitting import Fit
from simcluster.evidence.validation.fitting_rows import SampleRun, RowResult, Sample, Settings

Values = tuple[float, ...]
"""One value of every constant of a fit, in their order: a point."""

SimulateRows = Callable[[Sequence[tuple[SampleRun, Settings]]], Iterable[RowResult]]
"""Plays questions, in order."""

_NODE = 0.7071  # of the way from the middle of the bounds: Chebyshev's two nodes
_APART = 0.3  # in the same measure
_MOST_CORNERS = 3  # constants; of more, one at a time is moved
NEAREST = 0.02
"""In steps of the fit: nothing is interpolated between points that are nearer than this, where times are rough."""


def simulate_sample(asked: tuple[SampleRun, Settings]) -> RowResult:
    """Simulate a question, here or in a worker process."""
    question, settings = asked
    return question.simulate(settings)


class RowResponses:
    """The rows of a fit as functions of its constants; points are simulated when they are asked for, and kept."""

    def __init__(self, fit: Fit, samples: Sequence[Sample], ask: SimulateRows, progress: Callable[[str], object]) -> None:
        self.fit, self.samples = fit, samples
        self._ask, self._progress = ask, progress
        self._first: dict[str, int] = {}  # of the rows that are played alike
        for place, sample in enumerate(samples):
            self._first.setdefault(sample.run.run_key, place)
        self._constants = [Parameter(name, each.unfitted, *each.bounds) for name, each in fit.constants.items()]
        self._low, self._high = (
            self._search_values([getattr(each, end) for each in self._constants]) for end in ("low", "high")
        )
        self._known: dict[Values, list[tuple[float, float]]] = {}
        self._inside: list[Values] = []  # points within the bounds: those that are interpolated between
        self._surface: Callable[[Floats], Floats] | None = None

    @property
    def num_distinct_rows(self) -> int:
        """Rows that are played; the others are played alike."""
        return len(self._first)

    @property
    def num_points(self) -> int:
        """Points at which the rows were simulated."""
        return len(self._known)

    def simulate_point(self, values: Values) -> list[tuple[float, float]]:
        """Return (predicted, measured) of every row at a point (s); InputError for a row that cannot be simulated."""
        if values not in self._known:
            settings = tuple(
                (path, value * factor)
                for constant, value in zip(self.fit.constants.values(), values, strict=True)
                for path, factor in (*((path, 1.0) for path in constant.path), *constant.follow.items())
            )
            answers = self._ask([(self.samples[place].run, settings) for place in self._first.values()])
            at = ", ".join(f"{name} {value:.4g}" for name, value in zip(self.fit.constants, values, strict=True))
            coming, by = iter(answers), {}
            for row, alike in enumerate(self._first, 1):  # each row is named before it is waited for
                self._progress(f"point {self.num_points + 1} ({at}), row {row} of {self.num_distinct_rows}")
                by[alike] = next(coming)
            self._known[values] = [sample.compare(by[sample.run.run_key]) for sample in self.samples]
            if self._within(values) and self.nearest_distance(values) > NEAREST:
                self._inside.append(values)
                self._surface = None
        return self._known[values]

    def residuals(self, values: Values) -> Floats:
        """Return ln(predicted / measured) of every row, simulated."""
        return np.array([np.log(predicted / measured) for predicted, measured in self.simulate_point(values)])

    def interpolate(self, values: Sequence[float]) -> Floats:
        """Return ln(predicted / measured) of every row, from the points that were simulated."""
        if self._surface is None:
            places = np.array([self._normalize(each) for each in self._inside])
            rows = np.array([self.residuals(each) for each in self._inside])
            self._surface = rbf_interpolator(places, rows)
        found: Floats = self._surface(self._normalize(values)[None, :])[0]
        return found

    def check_point(self, values: Values) -> float:
        """Simulate a point, which is interpolated from then on; return how far the worst row was off there."""
        before = self.interpolate(values)
        return float(np.abs(np.expm1(before - self.residuals(values))).max())

    def best_point(self, rows: Sequence[int]) -> Values:
        """Return the point with the smallest error of these rows so far."""
        return min(self._inside, key=lambda each: float(np.abs(self.residuals(each)[list(rows)]).mean()))

    def simulate_first_points(self, further: Sequence[Values]) -> None:
        """Simulate the first points: those given within the bounds, the middle, and corners not next to one of these.

        With more than three constants there are too many corners, and one constant is moved at a time.
        """
        count = len(self.fit.constants)
        if count <= _MOST_CORNERS:
            around = list(product((-_NODE, _NODE), repeat=count))
        else:
            around = [
                tuple(side * (place == one) for place in range(count)) for one in range(count) for side in (-_NODE, _NODE)
            ]
        middle = [(0.0,) * count] if count > 1 else []
        for values in further:
            if self._within(values):
                self.simulate_point(values)
        for place in (*middle, *around):
            if all(np.abs(self._normalize(each) - place).max() > _APART for each in self._inside):
                seen = self._low + (self._high - self._low) * (np.array(place) + 1.0) / 2.0
                self.simulate_point(tuple(each.from_search(float(x)) for each, x in zip(self._constants, seen, strict=True)))

    def neighbours(self, values: Values, width: float) -> list[tuple[Values, Values]]:
        """Return points below and above in one constant each, within the bounds, by ``width`` of the fit's ``step``."""
        found = []
        for one, constant in enumerate(self._constants):
            here = constant.to_search(values[one])
            low, high = (constant.from_search(here + side * width * self.fit.step) for side in (-1.0, 1.0))
            found.append(((*values[:one], low, *values[one + 1 :]), (*values[:one], high, *values[one + 1 :])))
        return found

    def step_distances(self, one: Sequence[float], two: Sequence[float]) -> Floats:
        """Return how far two points are from each other in each constant, in steps of the fit."""
        return np.abs(self._search_values(one) - self._search_values(two)) / self.fit.step

    def nearest_distance(self, values: Sequence[float]) -> float:
        """Return the distance to the nearest point, in steps of the fit, of the constant that is furthest."""
        return min((float(self.step_distances(values, each).max()) for each in self._inside), default=np.inf)

    def snap(self, values: Values) -> Values:
        """Return the point that is as good as there, if there is one."""
        near = min(self._inside, key=lambda each: float(self.step_distances(values, each).max()))
        return near if self.step_distances(values, near).max() <= NEAREST else values

    def parameters(self, values: Sequence[float]) -> list[Parameter]:
        """Return the constants for a search that begins there."""
        return [replace(each, start=value) for each, value in zip(self._constants, values, strict=True)]

    def _within(self, values: Values) -> bool:
        return all(each.low <= value <= each.high for each, value in zip(self._constants, values, strict=True))

    def _search_values(self, values: Sequence[float]) -> Floats:
        return np.array([each.to_search(value) for each, value in zip(self._constants, values, strict=True)])

    def _normalize(self, values: Sequence[float]) -> Floats:
        """From -1 to 1 between the bounds, as the search sees them."""
        return 2.0 * (self._search_values(values) - self._low) / (self._high - self._low) - 1.0


TOLERANCE = 1e-3
"""Of a row's predicted time: how far the interpolation may be off where it is relied on."""

_MAX_ROUNDS = 60
_NARROWEST = 1 / 16  # steps of the fit, from what was found to the points beside it
_STILL = 0.5  # steps of the fit
_SPREAD = 0.1  # standard errors
_NEAR = 3.0  # steps of the fit: folds that lead no further from a point are not simulated
_SLOPE = 0.1  # of the fit's step: the derivatives of the search, which cost nothing
_MAX_EVALUATIONS = 100
_SEARCH_TOLERANCE = 1e-7
_NO_EFFECT = 1e-9


@dataclass(frozen=True, slots=True)
class Fold:
    """A group of rows that is left out (``out``), and the rows that are left, by their places."""

    by: str
    group: str
    out: tuple[int, ...]
    others: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What was found on all rows, with every fold's values, and how far the interpolation was off.

    ``error`` of the worst row where all rows led and beside it, ``fold_error`` of the worst row at the folds that were
    simulated (None if all were near enough to points); ``converged``: both at most ``TOLERANCE``.
    """

    whole: Solution
    folds: tuple[Values, ...]
    error: float
    fold_error: float | None
    converged: bool


def search_constants(responses: RowResponses, folds: Sequence[Fold]) -> SearchResult:
    """Find the constants on all rows, and on what each fold leaves; InputError for a row that cannot be simulated."""
    whole, error, settled = _fit_all_rows(responses)
    found, fold_error = _fit_folds(responses, folds, whole.values, rounds=_MAX_ROUNDS * len(folds) if settled else 0)
    return SearchResult(whole, found, error, fold_error, settled and (fold_error or 0.0) <= TOLERANCE and whole.converged)


def _fit_all_rows(responses: RowResponses) -> tuple[Solution, float, bool]:
    """Simulated where it leads and beside that, until neither changes anything any more.

    Rows that are rough, at every scale, never come so far: beside a point they are off, however near.
    """
    every, width = range(len(responses.samples)), 1.0
    centre: Values | None = None
    error = beside = np.inf
    for _ in range(_MAX_ROUNDS):
        found, points = _fit_interpolated(responses, every), responses.num_points
        found = replace(found, values=responses.snap(found.values))
        error = responses.check_point(found.values)
        if error > TOLERANCE and responses.num_points > points:
            continue
        if error > TOLERANCE or width < _NARROWEST:
            break
        if centre is not None and _relative_move(responses, centre, found) <= 1.0:
            # without a standard error for a constant that no row feels: interpolated rows feel their rounding
            errors = tuple(
                error if np.abs(responses.residuals(above) - responses.residuals(below)).max() > _NO_EFFECT else None
                for error, (below, above) in zip(found.errors, responses.neighbours(centre, width), strict=True)
            )
            return replace(found, errors=errors), max(error, beside), True
        centre = found.values
        beside = max(responses.check_point(each) for pair in responses.neighbours(centre, width) for each in pair)
        if beside > TOLERANCE:
            centre, width = None, width / 2.0
    return found, max(error, beside), False


def _relative_move(responses: RowResponses, centre: Values, found: Solution) -> float:
    """From the middle of the points that tell the slopes, of the constant that moved most; 1 is little: half a step of
    the fit, or a tenth of the standard error where that is more (a constant that the rows hardly tell goes far)."""
    spread = np.array(
        [
            0.0 if error is None else error / (each.start if each.low > 0 else each.high)
            for each, error in zip(responses.parameters(found.values), found.errors, strict=True)
        ]
    )
    return float(
        (responses.step_distances(found.values, centre) / np.maximum(_STILL, _SPREAD * spread / responses.fit.step)).max()
    )


def _fit_folds(
    responses: RowResponses, folds: Sequence[Fold], whole: Values, *, rounds: int
) -> tuple[tuple[Values, ...], float | None]:
    """Each fold's values; those that lead far from every point are simulated there until they were not off any more."""
    off: dict[int, float] = {}  # of the folds that were simulated, when they were last
    found = [_fit_interpolated(responses, fold.others, whole).values for fold in folds]
    for _ in range(rounds):
        far = {place: responses.nearest_distance(values) for place, values in enumerate(found)}
        unsure = [place for place in far if far[place] > _NEAR or off.get(place, 0.0) > TOLERANCE]
        if not unsure:
            break
        place = max(unsure, key=lambda each: far[each])
        off[place] = responses.check_point(found[place])
        found = [_fit_interpolated(responses, fold.others, whole).values for fold in folds]
    return tuple(found), max(off.values(), default=None)


def _fit_interpolated(responses: RowResponses, rows: Sequence[int], start: Values | None = None) -> Solution:
    """Least squares on interpolated rows, from the best point of them that was simulated, and from ``start``."""
    fit, places = responses.fit, list(rows)
    starts = dict.fromkeys([responses.best_point(places), *([start] if start else [])])

    def ask(values: Values) -> Floats:
        found: Floats = responses.interpolate(values)[places]
        return found

    found = [
        least_squares(
            responses.parameters(each), ask, loss=fit.loss, step=_SLOPE * fit.step, most=_MAX_EVALUATIONS, tolerance=_SEARCH_TOLERANCE
        )
        for each in starts
    ]
    power = 2 if fit.loss == "squares" else 1
    return min(found, key=lambda each: float(np.mean(np.abs(each.residuals) ** power)))
