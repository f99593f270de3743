"""Bounded least squares for model constants, with a standard error for each constant.

Positive constants are searched by their logarithm, so that a step means as much for 1e-6 s as for 0.8. scipy is
imported only here, and only when something is fitted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import did_you_mean, join_or


def value_at_path(model: Any, path: str) -> Any:
    """Return the value at a path such as "matmul.power" in a model; raise InputError for an unknown path."""
    current = model
    for place, part in enumerate(path.split(".")):
        fields = current if isinstance(current, Mapping) else getattr(type(current), "model_fields", ())
        known = [str(name) for name in fields]
        if part not in known:
            above = ".".join(path.split(".")[:place])
            where = f" in {above}" if above else ""
            what = f"{did_you_mean(part, known)}; there are {join_or(known)}" if known else "; it is a single value"
            raise InputError(f"there is no {path}: no {part!r}{where}{what}")
        current = current[part] if isinstance(current, Mapping) else getattr(current, part)
    return current


def replace_value_at(model: Any, path: str, value: Any) -> Any:
    """Return a copy of a model with another value at a path; check the path, but not the value."""
    value_at_path(model, path)
    head, _, rest = path.partition(".")
    if rest:
        value = replace_value_at(model[head] if isinstance(model, Mapping) else getattr(model, head), rest, value)
    return {**model, head: value} if isinstance(model, Mapping) else model.model_copy(update={head: value})


Residuals = Callable[[tuple[float, ...]], Floats]
"""Function from values of the constants to residuals, one per row, in constant order."""

Loss = Literal["squares", "robust", "absolute"]
"""Loss of a residual: its square; its square up to 5 %, then its size; (nearly) its size, as in a mean error."""

_SCIPY_LOSS = {"squares": ("linear", 1.0), "robust": ("soft_l1", 0.05), "absolute": ("soft_l1", 0.02)}
_NO_SLOPE = 1e-9
_START_MARGIN = 0.01  # of the range: the search starts inside the bounds, where slopes are defined


@dataclass(frozen=True, slots=True)
class FitParameter:
    """Constant to fit between two bounds; the search uses the constant's logarithm unless ``low`` is 0."""

    name: str
    start: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low < self.high or not self.low <= self.start <= self.high:
            raise InputError(f"{self.name}: start {self.start:g} must lie within bounds {self.low:g} to {self.high:g}")

    def to_search_coordinate(self, value: float) -> float:
        """Convert a constant's value to its search coordinate: the logarithm unless ``low`` is 0."""
        return math.log(value) if self.low > 0 else value / self.high

    def from_search_coordinate(self, value: float) -> float:
        """Convert a search coordinate to the constant's value, clipped to the bounds."""
        return min(max(math.exp(value) if self.low > 0 else value * self.high, self.low), self.high)


@dataclass(frozen=True, slots=True)
class FitSolution:
    """Result of a least-squares fit: values, standard errors and residuals.

    An error is None if the rows do not determine the constant, or if it is at a bound.
    """

    values: tuple[float, ...]
    errors: tuple[float | None, ...]
    at_bound: tuple[bool, ...]
    residuals: Floats
    converged: bool


def fit_least_squares(
    parameters: Sequence[FitParameter], residuals: Residuals, *, loss: Loss = "squares", step: float = 1e-3,
    max_tries: int = 60, tolerance: float = 1e-6,
) -> FitSolution:  # fmt: skip
    """Fit constants within their bounds by least squares or a robust loss, beginning at their start values.

    ``step`` is the relative step of the derivatives (of the upper bound, if the lower one is 0), which should be well
    above the roughness of the residuals; ``max_tries`` limits the points tried, not derivatives. Standard errors are
    those of the linearised problem, from the residuals of the rows that depend on a constant. Raises InputError
    without scipy, and for fewer residuals than constants.
    """
    optimize = _import_scipy().optimize
    seen: dict[tuple[float, ...], Floats] = {}

    def cached_residuals(point: Floats) -> Floats:
        values = tuple(each.from_search_coordinate(float(x)) for each, x in zip(parameters, point, strict=True))
        if values not in seen:
            seen[values] = residuals(values)
        return seen[values]

    low = np.array([each.to_search_coordinate(each.low) for each in parameters])
    high = np.array([each.to_search_coordinate(each.high) for each in parameters])

    def slopes_at(point: Floats) -> Floats:
        here, columns = cached_residuals(point), []
        for place, x in enumerate(point):
            other = point.copy()
            other[place] = x + step if x + step <= high[place] else x - step
            columns.append((cached_residuals(other) - here) / (other[place] - x))
        return np.stack(columns, axis=1)

    room = _START_MARGIN * (high - low)
    start = np.clip([each.to_search_coordinate(each.start) for each in parameters], low + room, high - room)
    rows = len(cached_residuals(start))
    if rows < len(parameters):
        raise InputError(f"{len(parameters)} constants cannot be fitted to {rows} rows; use at least as many rows")
    shape, scale = _SCIPY_LOSS[loss]
    answer = optimize.least_squares(
        cached_residuals, start, jac=slopes_at, bounds=(low, high), loss=shape, f_scale=scale, max_nfev=max_tries,
        xtol=tolerance, ftol=tolerance, gtol=tolerance * 1e-2, x_scale=1.0,
    )  # fmt: skip
    values = tuple(each.from_search_coordinate(float(x)) for each, x in zip(parameters, answer.x, strict=True))
    edges = tuple(bool(min(x - below, above - x) < 1e-4) for x, below, above in zip(answer.x, low, high, strict=True))
    fits = (answer.fun / scale) ** 2 if loss != "squares" else np.zeros_like(answer.fun)
    slopes = np.asarray(answer.jac, dtype=float) * ((1.0 + fits) ** 0.75)[:, None]  # undo scipy's scaling by the loss
    errors = _standard_errors(parameters, values, slopes, (1.0 + fits) ** -0.5, answer.fun, edges)
    return FitSolution(values, errors, edges, residuals(values), bool(answer.status > 0))


def _standard_errors(
    parameters: Sequence[FitParameter], values: Sequence[float], slopes: Floats, weights: Floats, residuals: Floats,
    at_bound: Sequence[bool],
) -> tuple[float | None, ...]:  # fmt: skip
    free = len(slopes) - len(parameters)
    seen = [
        place for place in range(len(parameters)) if not at_bound[place] and np.abs(slopes[:, place]).max() > _NO_SLOPE
    ]
    found: list[float | None] = [None] * len(parameters)
    if free <= 0 or not seen:
        return tuple(found)
    inner = slopes[:, seen]
    bread = np.linalg.pinv(inner.T @ (inner * weights[:, None]))
    filling = inner * (weights * residuals)[:, None]
    covariance = bread @ (filling.T @ filling) @ bread * len(slopes) / free
    for row, place in enumerate(seen):
        spread = math.sqrt(max(float(covariance[row, row]), 0.0))
        found[place] = spread * (values[place] if parameters[place].low > 0 else parameters[place].high)
    return tuple(found)


def make_rbf_interpolator(places: Floats, rows: Floats) -> Callable[[Floats], Floats]:
    """Return a function that interpolates vectors between known points by cubic radial basis functions."""
    made: Callable[[Floats], Floats] = _import_scipy().interpolate.RBFInterpolator(
        places, rows, kernel="cubic", degree=1
    )
    return made


def _import_scipy() -> Any:
    try:
        import scipy.interpolate
        import scipy.optimize
    except ImportError:
        raise InputError("fitting needs scipy; pip install 'scipy>=1.11'") from None
    return scipy
