"""Fits of loss laws to a table of your own runs: parameters, tokens (or FLOP) and final loss of each.

As Hoffmann's approach 3: the Huber loss (delta 1e-3) of the logarithm of the loss, with the sum of terms as
log-sum-exp, minimised from a grid of starts (arXiv:2203.15556 appendix D.3, with the corrections of arXiv:2404.10102:
the sum over rows, not their mean, and to convergence).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from pydantic import ValidationError

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError, prefix_errors
from simcluster.base.units import is_number
from simcluster.documents.csv_tables import CsvRow
from simcluster.longrun.budget.loss_laws import FLOP_PER_TOKEN, LossLaw

DELTA = 1e-3
_STARTS = ((0.0, 10.0, 20.0), (0.0, 10.0, 20.0), (-0.5, 0.5), (0.2, 0.8), (0.2, 0.8))  # ln A, ln B, ln E, alpha, beta
_NAMES = {
    "parameters": ("parameters", "N", "Model Size"),
    "tokens": ("tokens", "D"),
    "compute": ("compute", "C", "flop", "Training FLOP"),
    "loss": ("loss", "L"),
}
_TRIED, _KEPT = 20, 5  # iterations from every start, and how many of the best continue to convergence
_LEAST = 6  # rows, to fit five constants
_MOST_POWER = 700.0  # of e: beyond it floats overflow


@dataclass(frozen=True, slots=True)
class LossFit:
    """Loss law fitted to ``rows`` runs; the ``left_out`` runs of highest loss were excluded.

    ``objective`` is the sum of Huber losses, ``worst`` the largest relative error of a loss.
    """

    law: LossLaw
    rows: int
    left_out: int
    objective: float
    worst: float

    def to_dict(self) -> dict[str, Any]:
        """Return the fitted law as a JSON document (CONTRACT.md, scaling's ``fit``)."""
        law = self.law
        return {
            **{name: getattr(law, name) for name in law.errors}, "errors": law.errors, "rows": self.rows,
            "left_out": self.left_out, "objective": self.objective, "largest_error": self.worst,
            "parameters": list(law.parameters or ()), "tokens": list(law.tokens or ()),
        }  # fmt: skip


def fit_loss_law(rows: Sequence[CsvRow], source: str, *, left_out: int = 0, draws: int = 0) -> LossFit:
    """Fit a loss law to a table of runs with columns parameters, loss, and tokens or compute (FLOP).

    The ``left_out`` rows of highest loss are excluded; standard errors come from ``draws`` bootstrap draws. InputError
    for invalid rows, too few, or identical ones.
    """
    columns = find_loss_columns(rows)
    missing = [name for name in ("parameters", "loss") if columns[name] is None]
    if not missing and columns["tokens"] is None and columns["compute"] is None:
        missing = ["tokens", "compute"]
    if missing:
        raise InputError(
            f"{source}: the rows have no column {' or '.join(missing)}; a loss law is fitted to parameters, loss, "
            f"and tokens or compute (FLOP): rename the columns; there are {', '.join(rows[0].texts)}"
        )
    numbers = []  # [row, (N, D, loss)]
    for row in rows:
        parameters, loss = (read_positive_number(row, columns[name], source) for name in ("parameters", "loss"))
        seen = read_positive_number(row, columns["tokens"] or columns["compute"], source)
        tokens = seen if columns["tokens"] is not None else seen / (FLOP_PER_TOKEN * parameters)
        numbers.append((parameters, tokens, loss))
    table = np.array(numbers)
    kept = np.argsort(table[:, 2], kind="stable")[: max(0, len(table) - left_out)]
    if len(kept) < _LEAST:
        raise InputError(f"{source}: {len(kept)} rows are too few to fit five constants; give at least {_LEAST} rows")
    table = table[np.sort(kept)]
    for column, name in enumerate(("parameters", "tokens")):
        if np.ptp(np.log(table[:, column])) < 1e-9:
            raise InputError(f"{source}: all rows have the same {name}; add runs with other values")
    with prefix_errors(source):
        return _fit_law_to_table(table, source, left_out, draws)


def _fit_law_to_table(table: Floats, source: str, left_out: int, draws: int) -> LossFit:
    from scipy.optimize import minimize

    logs = np.log(table)

    def minimize_huber_loss_from(start: Sequence[float] | Floats, max_steps: int) -> Any:
        return minimize(_huber_loss, start, args=(logs,), jac=True, method="BFGS", options={"maxiter": max_steps})

    begun = sorted((minimize_huber_loss_from(at, _TRIED) for at in product(*_STARTS)), key=lambda each: float(each.fun))
    found = [minimize_huber_loss_from(each.x, 1000) for each in begun[:_KEPT]]
    good = [each for each in found if np.isfinite(each.x).all() and min(each.x[3:]) > 0]
    if not good:
        raise InputError(
            f"{source}: the losses do not fall with parameters and tokens; larger runs must have "
            "lower losses: remove the rows of unfinished runs"
        )
    best = min(good, key=lambda each: float(each.fun))
    a, b, e, alpha, beta = (float(value) for value in best.x)
    spans = [(float(column.min()), float(column.max())) for column in table[:, :2].T]
    errors = _bootstrap_errors(best.x, logs, draws) if draws > 1 else {}
    try:
        law = LossLaw(
            name="fitted", E=_exp_or_input_error(e), A=_exp_or_input_error(a), alpha=alpha, B=_exp_or_input_error(b),
            beta=beta, errors=errors, parameters=spans[0], tokens=spans[1], source=f"{source}: {len(table)} runs",
        )  # fmt: skip
    except ValidationError:
        raise InputError(
            f"{source}: the best fit has E {_exp_or_input_error(e):.3g} and exponents {alpha:.3g} and {beta:.3g}, "
            "which is not a loss law (E at most 100, exponents at most 5); add "
            "runs of other sizes and numbers of tokens, or remove duplicates"
        ) from None
    predicted = np.array([law.loss(parameters, tokens) for parameters, tokens, _ in table])
    return LossFit(law, len(table), left_out, float(best.fun), float(np.abs(predicted / table[:, 2] - 1).max()))


def _huber_loss(point: Floats, logs: Floats) -> tuple[float, Floats]:
    """Return the sum of Huber losses of the runs' log losses at the constants ``point``, and its derivatives."""
    a, b, e, alpha, beta = point
    sizes, tokens = logs[:, 0], logs[:, 1]
    terms = np.stack([a - alpha * sizes, b - beta * tokens, np.full_like(sizes, e)])
    top = terms.max(axis=0)
    weights = np.exp(terms - top)
    total = weights.sum(axis=0)
    weights /= total
    slopes = np.stack([*weights, -weights[0] * sizes, -weights[1] * tokens], axis=1)
    residuals = top + np.log(total) - logs[:, 2]
    size = np.abs(residuals)
    values = np.where(size <= DELTA, residuals**2 / 2, DELTA * (size - DELTA / 2))
    return float(values.sum()), np.clip(residuals, -DELTA, DELTA) @ slopes


def _exp_or_input_error(power: float) -> float:
    if not power < _MOST_POWER:
        raise InputError(
            "the rows do not determine the constants: the fit to a bootstrap resample overflows; add runs of other "
            "sizes, or remove outliers"
        )
    return math.exp(power)


def _bootstrap_errors(best: Floats, logs: Floats, draws: int) -> dict[str, float]:
    from scipy.optimize import minimize

    generator = np.random.Generator(np.random.Philox(0))
    found = []
    for _ in range(draws):
        again = logs[generator.integers(0, len(logs), len(logs))]
        a, b, e, alpha, beta = minimize(_huber_loss, best, args=(again,), jac=True, method="BFGS").x
        found.append((_exp_or_input_error(e), _exp_or_input_error(a), alpha, _exp_or_input_error(b), beta))
    return dict(zip(("E", "A", "alpha", "B", "beta"), np.std(np.array(found), axis=0, ddof=1).tolist(), strict=True))


def find_loss_columns(rows: Sequence[CsvRow]) -> dict[str, str | None]:
    """Return the table's column for parameters, tokens, compute and loss; None for a missing column."""
    return {
        name: next((column for column in rows[0].texts if column.strip() in spellings), None)
        for name, spellings in _NAMES.items()
    }


def read_positive_number(row: CsvRow, column: str | None, source: str) -> float:
    """Return the number in a column of a row; raise InputError unless the number is positive."""
    assert column is not None
    value = row.cells[column]
    if not is_number(value) or value <= 0:
        raise InputError(
            f"{source}: row {row.number}: {column}: {row.texts[column]!r} is not a positive number; write a number "
            "such as 3.1"
        )
    return float(value)


@dataclass(frozen=True, slots=True)
class ComputeLaw:
    """Loss law that depends on compute alone: L(C) = L_inf + a C^-alpha, C in FLOP.

    Fitted to ``rows`` runs of ``compute`` (least and most FLOP). ``errors`` are the standard errors if there are more
    rows than constants; ``objective`` is the sum of Huber losses of the log loss, ``worst`` the largest relative error
    of a loss.
    """

    L_inf: float
    a: float
    alpha: float
    rows: int
    left_out: int
    compute: tuple[float, float]
    objective: float
    worst: float
    errors: Mapping[str, float] = field(default_factory=dict)

    def loss(self, compute: float) -> float:
        """Return the loss (nats per token) of the best model for a compute budget (FLOP)."""
        return float(self.L_inf + self.a * compute**-self.alpha)

    def compute_to_loss(self, loss: float) -> float | None:
        """Return the compute (FLOP) needed to reach a loss; None if no compute reaches it."""
        if loss <= self.L_inf:
            return None
        power = math.log(self.a / (loss - self.L_inf)) / self.alpha
        return math.exp(power) if power < 700 else None

    def extrapolation_factor(self, compute: float) -> float:
        """Return the factor by which a compute budget lies outside the fitted runs' range; 1 if inside."""
        return max(1.0, compute / self.compute[1], self.compute[0] / compute)

    def formula(self) -> str:
        """Return the formula of the law with all constants, as text."""
        return f"L = {self.L_inf:.5g} + {self.a:.5g} / C^{self.alpha:.4f}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fitted law as a JSON document (CONTRACT.md, scaling's ``fit``)."""
        return {
            "L_inf": self.L_inf, "a": self.a, "alpha": self.alpha, "errors": dict(self.errors), "rows": self.rows,
            "left_out": self.left_out, "objective": self.objective, "largest_error": self.worst,
            "compute": list(self.compute),
        }  # fmt: skip


def lacks_parameters_and_tokens(rows: Sequence[CsvRow]) -> bool:
    """Return whether a table of runs has compute and loss, but neither parameters nor tokens."""
    found = find_loss_columns(rows)
    return found["compute"] is not None and found["parameters"] is None and found["tokens"] is None


def fit_compute_law(rows: Sequence[CsvRow], source: str, *, left_out: int = 0) -> ComputeLaw:
    """Fit a loss law in compute to a table of runs with columns compute (FLOP) and loss.

    By Huber losses of delta 1e-3. Two rows determine two constants: L_inf is then 0, a pure power law. The ``left_out``
    rows of highest loss are excluded. InputError for fewer rows, rows of equal compute, and losses that do not fall.
    """
    columns = find_loss_columns(rows)
    if columns["loss"] is None or columns["compute"] is None:
        raise InputError(f"{source}: the rows lack a column compute (FLOP) or loss; add or rename the columns")
    table = np.array([[read_positive_number(row, columns[key], source) for key in ("compute", "loss")] for row in rows])
    table = table[np.sort(np.argsort(table[:, 1], kind="stable")[: max(0, len(table) - left_out)])]
    if len(table) < 2 or np.ptp(np.log(table[:, 0])) < 1e-9:
        raise InputError(f"{source}: {len(table)} rows are too few; give two or more runs of different compute")
    if np.polyfit(np.log(table[:, 0]), np.log(table[:, 1]), 1)[0] >= 0:
        raise InputError(
            f"{source}: the losses do not fall with compute, so no law fits; give larger runs with lower losses"
        )
    return _fit_compute_law_to_table(table, left_out)


def _fit_compute_law_to_table(table: Floats, left_out: int) -> ComputeLaw:
    """Fit L = L_inf + b exp(-alpha u); u is ln C minus the mean ln C, so that constants are of similar size."""
    from scipy.optimize import least_squares

    middle = float(np.log(table[:, 0]).mean())
    logs = np.log(table[:, 1])
    u = np.log(table[:, 0]) - middle
    least = float(table[:, 1].min())
    free = len(table) > 2

    def constants_at(point: Floats) -> tuple[float, float, float]:
        return (float(point[2]) if free else 0.0), math.exp(point[0]), float(point[1])

    def residuals(point: Floats) -> Floats:
        limit, b, alpha = constants_at(point)
        return np.asarray(np.log(limit + b * np.exp(-alpha * u)) - logs)

    def residual_derivatives(point: Floats) -> Floats:
        limit, b, alpha = constants_at(point)
        above = b * np.exp(-alpha * u)
        columns = [above, -u * above, np.ones_like(u)][: len(point)]
        return np.asarray(np.stack(columns, axis=1) / (limit + above)[:, None])

    def minimize_from(start: Sequence[float] | Floats, loss: str) -> Any:
        low, high = [-50.0, 1e-6, 0.0][: len(start)], [50.0, 5.0, least][: len(start)]
        how: dict[str, Any] = {"x_scale": "jac", "max_nfev": 200, **dict.fromkeys(("xtol", "ftol", "gtol"), 1e-12)}
        begin = np.clip(start, np.array(low) + 1e-9, np.array(high) - 1e-9)
        return least_squares(residuals, begin, residual_derivatives, (low, high), loss=loss, f_scale=DELTA, **how)

    begun = []
    for share in (0.5, 0.9) if free else (0.0,):  # of the least loss: where L_inf begins
        slope, height = np.polyfit(u, np.log(table[:, 1] - share * least), 1)
        begun.append(minimize_from([height, -slope, share * least][: 3 if free else 2], "linear"))
    found = minimize_from(min(begun, key=lambda each: float(each.cost)).x, "huber")
    limit, b, alpha = constants_at(found.x)
    ends = float(table[:, 0].min()), float(table[:, 0].max())
    worst = float(np.abs(np.expm1(residuals(found.x))).max())
    errors = _compute_law_errors(found, b, middle) if len(table) > len(found.x) else {}
    return ComputeLaw(
        limit, b * math.exp(alpha * middle), alpha, len(table), left_out, ends, float(found.cost), worst, errors
    )


def _compute_law_errors(fitted: Any, b: float, middle: float) -> dict[str, float]:
    slopes = fitted.jac
    spread = float((fitted.fun**2).sum()) / (len(fitted.fun) - len(fitted.x))
    covered = spread * np.linalg.pinv(slopes.T @ slopes)
    of_log_a = np.array([1.0, middle, 0.0])  # ln a = ln b + alpha * middle
    a = b * math.exp(fitted.x[1] * middle)
    return {
        "L_inf": math.sqrt(covered[2, 2]),
        "a": a * math.sqrt(of_log_a @ covered @ of_log_a),
        "alpha": math.sqrt(covered[1, 1]),
    }
