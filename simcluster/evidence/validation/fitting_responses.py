"""What the rows of a fit answer to its constants: simulated at a few points, interpolated between them.

The logarithm of a step's time goes smoothly with the logarithm of a constant (a sum of times, some of which go as its
inverse), so a few points tell all of it.  A point is one value of every constant; at a point all rows are simulated,
rows that are played alike once.  Between points their residuals are interpolated by cubic radial basis functions with
a linear part, through the points, whose number and place are free: with one constant that is the natural cubic spline
(Wendland, Scattered Data Approximation, 2005, chapter 8).  Where one kind of kernel stops being bound by what the
constant says there is a kink, and the interpolation is only as good as the points are near: search.py adds them there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.evidence.calibration.least_squares import Parameter, surface
from simcluster.evidence.validation.fitting import Fit
from simcluster.evidence.validation.fitting_rows import Question, RowAnswer, Sample, Settings

Values = tuple[float, ...]
"""One value of every constant of a fit, in their order: a point."""

Ask = Callable[[Sequence[tuple[Question, Settings]]], Iterable[RowAnswer]]
"""Plays questions, in order."""

_OUT = 0.7071  # of the way from the middle of the bounds: Chebyshev's two nodes
_APART = 0.3  # in the same measure
_MOST_CORNERS = 3  # constants; of more, one at a time is moved
NEAREST = 0.02
"""In steps of the fit: nothing is interpolated between points that are nearer than this, where times are rough."""


def answer(asked: tuple[Question, Settings]) -> RowAnswer:
    """A question played, here or in a worker process."""
    question, settings = asked
    return question.played(settings)


class Responses:
    """The rows of a fit as functions of its constants; points are simulated when they are asked for, and kept."""

    def __init__(self, fit: Fit, samples: Sequence[Sample], ask: Ask, progress: Callable[[str], object]) -> None:
        self.fit, self.samples = fit, samples
        self._ask, self._progress = ask, progress
        self._first: dict[str, int] = {}  # of the rows that are played alike
        for place, sample in enumerate(samples):
            self._first.setdefault(sample.question.alike, place)
        self._constants = [Parameter(name, each.unfitted, *each.bounds) for name, each in fit.constants.items()]
        self._low, self._high = (
            self._seen([getattr(each, end) for each in self._constants]) for end in ("low", "high")
        )
        self._known: dict[Values, list[tuple[float, float]]] = {}
        self._inside: list[Values] = []  # points within the bounds: those that are interpolated between
        self._surface: Callable[[Floats], Floats] | None = None

    @property
    def distinct(self) -> int:
        """Rows that are played; the others are played alike."""
        return len(self._first)

    @property
    def points(self) -> int:
        """Points at which the rows were simulated."""
        return len(self._known)

    def simulated(self, values: Values) -> list[tuple[float, float]]:
        """(predicted, measured) of every row at a point, in seconds; InputError for a row that cannot be played."""
        if values not in self._known:
            settings = tuple(self._settings(values))
            answers = self._ask([(self.samples[place].question, settings) for place in self._first.values()])
            by = dict(zip(self._first, self._followed(answers, values), strict=True))
            self._known[values] = [sample.beside(by[sample.question.alike]) for sample in self.samples]
            if self._within(values) and self.distance(values) > NEAREST:
                self._inside.append(values)
                self._surface = None
        return self._known[values]

    def _followed(self, answers: Iterable[RowAnswer], values: Values) -> Iterator[RowAnswer]:
        """The answers as they come, each row said before it is waited for."""
        at = ", ".join(f"{name} {value:.4g}" for name, value in zip(self.fit.constants, values, strict=True))
        coming = iter(answers)
        for row in range(1, self.distinct + 1):
            self._progress(f"point {self.points + 1} ({at}), row {row} of {self.distinct}")
            yield next(coming)

    def residuals(self, values: Values) -> Floats:
        """ln(predicted / measured) of every row, simulated."""
        return np.array([np.log(predicted / measured) for predicted, measured in self.simulated(values)])

    def interpolated(self, values: Sequence[float]) -> Floats:
        """ln(predicted / measured) of every row, from the points that were simulated."""
        if self._surface is None:
            places = np.array([self._place(each) for each in self._inside])
            rows = np.array([self.residuals(each) for each in self._inside])
            self._surface = surface(places, rows)
        found: Floats = self._surface(self._place(values)[None, :])[0]
        return found

    def check(self, values: Values) -> float:
        """How far the interpolation was off there, of the worst row: the point is simulated, and belongs to it then."""
        before = self.interpolated(values)
        return float(np.abs(np.expm1(before - self.residuals(values))).max())

    def best(self, rows: Sequence[int]) -> Values:
        """The point with the smallest error of these rows so far."""
        return min(self._inside, key=lambda each: float(np.abs(self.residuals(each)[list(rows)]).mean()))

    # --- points -------------------------------------------------------------------------------------------------------

    def begin(self, further: Sequence[Values]) -> None:
        """The first points: those given, where they lie within the bounds, the middle, and the corners around it that
        are not next to one of these.

        With more than three constants there are too many corners, and one constant is moved at a time.
        """
        count = len(self.fit.constants)
        if count <= _MOST_CORNERS:
            around = list(product((-_OUT, _OUT), repeat=count))
        else:
            around = [
                tuple(side * (place == one) for place in range(count)) for one in range(count) for side in (-_OUT, _OUT)
            ]
        middle = [(0.0,) * count] if count > 1 else []
        for values in further:
            if self._within(values):
                self.simulated(values)
        for place in (*middle, *around):
            if all(np.abs(self._place(each) - place).max() > _APART for each in self._inside):
                self.simulated(self._values(place))

    def beside(self, values: Values, width: float) -> list[tuple[Values, Values]]:
        """Below and above in one constant each, within the bounds, by ``width`` of the fit's ``step``."""
        found = []
        for one, constant in enumerate(self._constants):
            here = constant.outside(values[one])
            low, high = (constant.inside(here + side * width * self.fit.step) for side in (-1.0, 1.0))
            found.append(((*values[:one], low, *values[one + 1 :]), (*values[:one], high, *values[one + 1 :])))
        return found

    def apart(self, one: Sequence[float], two: Sequence[float]) -> Floats:
        """How far two points are from each other in each constant, in steps of the fit."""
        return np.abs(self._seen(one) - self._seen(two)) / self.fit.step

    def distance(self, values: Sequence[float]) -> float:
        """To the nearest point, in steps of the fit, of the constant that is furthest."""
        return min((float(self.apart(values, each).max()) for each in self._inside), default=np.inf)

    def snapped(self, values: Values) -> Values:
        """The point that is as good as there, if there is one."""
        near = min(self._inside, key=lambda each: float(self.apart(values, each).max()))
        return near if self.apart(values, near).max() <= NEAREST else values

    def parameters(self, values: Sequence[float]) -> list[Parameter]:
        """The constants for a search that begins there."""
        return [replace(each, start=value) for each, value in zip(self._constants, values, strict=True)]

    def _within(self, values: Values) -> bool:
        return all(each.low <= value <= each.high for each, value in zip(self._constants, values, strict=True))

    def _settings(self, values: Values) -> Iterator[tuple[str, float]]:
        for constant, value in zip(self.fit.constants.values(), values, strict=True):
            yield from ((path, value) for path in constant.path)
            yield from ((path, value * factor) for path, factor in constant.follow.items())

    def _seen(self, values: Sequence[float]) -> Floats:
        return np.array([each.outside(value) for each, value in zip(self._constants, values, strict=True)])

    def _place(self, values: Sequence[float]) -> Floats:
        """From -1 to 1 between the bounds, as the search sees them."""
        return 2.0 * (self._seen(values) - self._low) / (self._high - self._low) - 1.0

    def _values(self, place: Sequence[float]) -> Values:
        seen = self._low + (self._high - self._low) * (np.array(place) + 1.0) / 2.0
        return tuple(each.inside(float(x)) for each, x in zip(self._constants, seen, strict=True))
