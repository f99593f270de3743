"""The constants of a fit by least squares on interpolated rows, on all of them and with groups left out.

First all rows: what is found is simulated, which is one point more to interpolate from, until the interpolation was off
by at most ``TOLERANCE`` where it led, and at points beside that by the fit's ``step`` (nearer ones, if that is not
enough), which make its slopes those of a fit that simulates at every trial.  Then the folds of the cross-validation,
with no simulation of their own, unless one leads far from all points: then all rows are simulated there too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.evidence.calibration.least_squares import Solution, least_squares
from simcluster.evidence.validation.fitting_responses import Responses, Values

TOLERANCE = 1e-3
"""Of a row's predicted time: how far the interpolation may be off where it is relied on."""

_ROUNDS = 60
_NARROWEST = 1 / 16  # steps of the fit, from what was found to the points beside it
_STILL = 0.5  # steps of the fit
_SPREAD = 0.1  # standard errors
_NEAR = 3.0  # steps of the fit: folds that lead no further from a point are not simulated
_SLOPE = 0.1  # of the fit's step: the derivatives of the search, which cost nothing
_MOST = 100
_FINE = 1e-7
_FELT = 1e-9


@dataclass(frozen=True, slots=True)
class Fold:
    """A group of rows that is left out (``out``), and the rows that are left, by their places."""

    by: str
    group: str
    out: tuple[int, ...]
    others: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Search:
    """What was found on all rows, with every fold's values, and how far the interpolation was off.

    ``error`` of the worst row where all rows led and beside it, ``fold_error`` of the worst row at the folds that were
    simulated (None if all were near enough to points); ``converged``: both at most ``TOLERANCE``.
    """

    whole: Solution
    folds: tuple[Values, ...]
    error: float
    fold_error: float | None
    converged: bool


def search(responses: Responses, folds: Sequence[Fold]) -> Search:
    """The constants on all rows, and on what each fold leaves.  InputError for a row that cannot be played."""
    whole, error, settled = _whole(responses)
    found, fold_error = _folds(responses, folds, whole.values, rounds=_ROUNDS * len(folds) if settled else 0)
    return Search(whole, found, error, fold_error, settled and (fold_error or 0.0) <= TOLERANCE and whole.converged)


def _whole(responses: Responses) -> tuple[Solution, float, bool]:
    """Simulated where it leads and beside that, until neither changes anything any more.

    Rows that are rough, at every scale, never come so far: beside a point they are off, however near.
    """
    every, width = range(len(responses.samples)), 1.0
    centre: Values | None = None
    error = beside = np.inf
    for _ in range(_ROUNDS):
        found, points = _solved(responses, every), responses.points
        found = replace(found, values=responses.snapped(found.values))
        error = responses.check(found.values)
        if error > TOLERANCE and responses.points > points:
            continue
        if error > TOLERANCE or width < _NARROWEST:
            break
        if centre is not None and _moved(responses, centre, found) <= 1.0:
            return _felt(responses, found, centre, width), max(error, beside), True
        centre = found.values
        beside = max(responses.check(each) for pair in responses.beside(centre, width) for each in pair)
        if beside > TOLERANCE:
            centre, width = None, width / 2.0
    return found, max(error, beside), False


def _moved(responses: Responses, centre: Values, found: Solution) -> float:
    """From the middle of the points that tell the slopes, of the constant that moved most; 1 is little: half a step of
    the fit, or a tenth of the standard error where that is more (a constant that the rows hardly tell goes far)."""
    spread = np.array(
        [
            0.0 if error is None else error / (each.start if each.low > 0 else each.high)
            for each, error in zip(responses.parameters(found.values), found.errors, strict=True)
        ]
    )
    return float(
        (responses.apart(found.values, centre) / np.maximum(_STILL, _SPREAD * spread / responses.fit.step)).max()
    )


def _folds(
    responses: Responses, folds: Sequence[Fold], whole: Values, *, rounds: int
) -> tuple[tuple[Values, ...], float | None]:
    """Each fold's values; those that lead far from every point are simulated there until they were not off any more."""
    off: dict[int, float] = {}  # of the folds that were simulated, when they were last
    found = [_solved(responses, fold.others, whole).values for fold in folds]
    for _ in range(rounds):
        far = {place: responses.distance(values) for place, values in enumerate(found)}
        unsure = [place for place in far if far[place] > _NEAR or off.get(place, 0.0) > TOLERANCE]
        if not unsure:
            break
        place = max(unsure, key=lambda each: far[each])
        off[place] = responses.check(found[place])
        found = [_solved(responses, fold.others, whole).values for fold in folds]
    return tuple(found), max(off.values(), default=None)


def _solved(responses: Responses, rows: Sequence[int], start: Values | None = None) -> Solution:
    """Least squares on interpolated rows, from the best point of them that was simulated, and from ``start``."""
    fit, places = responses.fit, list(rows)
    starts = dict.fromkeys([responses.best(places), *([start] if start else [])])

    def ask(values: Values) -> Floats:
        found: Floats = responses.interpolated(values)[places]
        return found

    found = [
        least_squares(
            responses.parameters(each), ask, loss=fit.loss, step=_SLOPE * fit.step, most=_MOST, tolerance=_FINE
        )
        for each in starts
    ]
    power = 2 if fit.loss == "squares" else 1
    return min(found, key=lambda each: float(np.mean(np.abs(each.residuals) ** power)))


def _felt(responses: Responses, found: Solution, centre: Values, width: float) -> Solution:
    """Without a standard error for a constant that no row feels: interpolated rows feel their rounding."""
    errors = [
        error if np.abs(responses.residuals(above) - responses.residuals(below)).max() > _FELT else None
        for error, (below, above) in zip(found.errors, responses.beside(centre, width), strict=True)
    ]
    return replace(found, errors=tuple(errors))
