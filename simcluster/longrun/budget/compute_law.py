"""A law of loss over compute alone, L(C) = L_inf + a C^-alpha: of runs whose sizes were not kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.documents.rows import Row
from simcluster.longrun.budget.loss_fit import DELTA, columns_of_rows, positive

CONSTANTS = ("L_inf", "a", "alpha")


@dataclass(frozen=True, slots=True)
class ComputeLaw:
    """L(C) = L_inf + a C^-alpha, C in FLOP; fitted to ``rows`` runs of ``compute`` (least and most FLOP).

    ``errors`` are standard errors of the constants, of more rows than constants; ``objective`` is the sum of Huber
    losses of the logarithm, ``worst`` the largest error of a loss as a fraction.
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
        """Nats a token of the best model of so many FLOP."""
        return float(self.L_inf + self.a * compute**-self.alpha)

    def compute_to(self, loss: float) -> float | None:
        """FLOP to a loss; None where no compute reaches it."""
        if loss <= self.L_inf:
            return None
        power = math.log(self.a / (loss - self.L_inf)) / self.alpha
        return math.exp(power) if power < 700 else None

    def beyond(self, compute: float) -> float:
        """How many times the compute lies outside the runs of the fit; 1 within them."""
        return max(1.0, compute / self.compute[1], self.compute[0] / compute)

    def formula(self) -> str:
        """With its constants."""
        return f"L = {self.L_inf:.5g} + {self.a:.5g} / C^{self.alpha:.4f}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON: CONTRACT.md, scaling's ``fit``."""
        return {
            **{name: getattr(self, name) for name in CONSTANTS}, "errors": dict(self.errors), "rows": self.rows,
            "left_out": self.left_out, "objective": self.objective, "largest_error": self.worst,
            "compute": list(self.compute),
        }  # fmt: skip


def of_compute_alone(rows: Sequence[Row]) -> bool:
    """Have these rows compute and loss, and neither parameters nor tokens?"""
    found = columns_of_rows(rows)
    return found["compute"] is not None and found["parameters"] is None and found["tokens"] is None


def fit_compute_law(rows: Sequence[Row], source: str, *, left_out: int = 0) -> ComputeLaw:
    """Fit the rows of a CSV file with columns compute (FLOP) and loss, as ``fit_loss_law`` does (Huber, delta 1e-3).

    Two rows fix two constants: L_inf is then 0, a plain power law.  ``left_out`` rows of the highest loss are not
    fitted.  InputError for fewer rows, rows of one compute, and losses that do not fall.
    """
    columns = columns_of_rows(rows)
    if columns["loss"] is None or columns["compute"] is None:
        raise InputError(f"{source}: a law of compute is fitted to columns compute (FLOP) and loss")
    table = np.array([[positive(row, columns[name], source) for name in ("compute", "loss")] for row in rows])
    table = table[np.sort(np.argsort(table[:, 1], kind="stable")[: max(0, len(table) - left_out)])]
    if len(table) < 2 or np.ptp(np.log(table[:, 0])) < 1e-9:
        raise InputError(
            f"{source}: a law of compute needs two runs or more, of different compute; {len(table)} are left"
        )
    if np.polyfit(np.log(table[:, 0]), np.log(table[:, 1]), 1)[0] >= 0:
        raise InputError(
            f"{source}: the losses do not fall with compute, and no law fits them; "
            "give runs of which larger ones end better"
        )
    return _fitted(table, left_out)


def _fitted(table: Floats, left_out: int) -> ComputeLaw:
    """In u = ln C less its mean, L = L_inf + b exp(-alpha u): constants of like size."""
    from scipy.optimize import least_squares

    middle, logs = float(np.log(table[:, 0]).mean()), np.log(table[:, 1])
    u, least, free = np.log(table[:, 0]) - middle, float(table[:, 1].min()), len(table) > 2

    def constants(point: Floats) -> tuple[float, float, float]:
        return (float(point[2]) if free else 0.0), math.exp(point[0]), float(point[1])

    def residuals(point: Floats) -> Floats:
        limit, b, alpha = constants(point)
        return np.asarray(np.log(limit + b * np.exp(-alpha * u)) - logs)

    def slopes(point: Floats) -> Floats:
        limit, b, alpha = constants(point)
        above = b * np.exp(-alpha * u)
        columns = [above, -u * above, np.ones_like(u)][: len(point)]
        return np.asarray(np.stack(columns, axis=1) / (limit + above)[:, None])

    def least_of(start: Sequence[float] | Floats, loss: str) -> Any:
        low, high = [-50.0, 1e-6, 0.0][: len(start)], [50.0, 5.0, least][: len(start)]
        tight: dict[str, Any] = dict.fromkeys(("xtol", "ftol", "gtol"), 1e-12)
        begin = np.clip(start, np.array(low) + 1e-9, np.array(high) - 1e-9)
        return least_squares(
            residuals, begin, slopes, (low, high), loss=loss, f_scale=DELTA, x_scale="jac", max_nfev=200, **tight
        )

    begun = []
    for share in (0.5, 0.9) if free else (0.0,):  # of the least loss: where L_inf begins
        slope, height = np.polyfit(u, np.log(table[:, 1] - share * least), 1)
        begun.append(least_of([height, -slope, share * least][: 3 if free else 2], "linear"))
    found = least_of(min(begun, key=lambda each: float(each.cost)).x, "huber")
    limit, b, alpha = constants(found.x)
    ends = float(table[:, 0].min()), float(table[:, 0].max())
    worst = float(np.abs(np.expm1(residuals(found.x))).max())
    errors = _errors(found, b, middle) if len(table) > len(found.x) else {}
    return ComputeLaw(
        limit, b * math.exp(alpha * middle), alpha, len(table), left_out, ends, float(found.cost), worst, errors
    )


def _errors(found: Any, b: float, middle: float) -> dict[str, float]:
    """Standard errors by the curvature at the optimum, of residuals as large as they are."""
    slopes, spread = found.jac, float((found.fun**2).sum()) / (len(found.fun) - len(found.x))
    covered = spread * np.linalg.pinv(slopes.T @ slopes)
    of_log_a = np.array([1.0, middle, 0.0])  # ln a = ln b + alpha * middle
    a = b * math.exp(found.x[1] * middle)
    return {
        "L_inf": math.sqrt(covered[2, 2]),
        "a": a * math.sqrt(of_log_a @ covered @ of_log_a),
        "alpha": math.sqrt(covered[1, 1]),
    }
