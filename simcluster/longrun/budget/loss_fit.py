"""A law of loss fitted to one's own runs: rows of parameters, tokens (or FLOP) and loss.

As Hoffmann's approach 3: the Huber loss (delta 1e-3) of the logarithm of the loss, with the sum of terms as
log-sum-exp, minimised from a grid of starts (arXiv:2203.15556 appendix D.3, with the corrections of arXiv:2404.10102:
the sum over rows, not their mean, and to convergence).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from pydantic import ValidationError

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError, located
from simcluster.base.units import is_number
from simcluster.documents.rows import Row
from simcluster.longrun.budget.loss_laws import FLOP_PER_TOKEN, LossLaw

DELTA = 1e-3
_STARTS = ((0.0, 10.0, 20.0), (0.0, 10.0, 20.0), (-0.5, 0.5), (0.2, 0.8), (0.2, 0.8))  # ln A, ln B, ln E, alpha, beta
_NAMES = {
    "parameters": ("parameters", "N", "Model Size"),
    "tokens": ("tokens", "D"),
    "compute": ("compute", "C", "flop", "Training FLOP"),
    "loss": ("loss", "L"),
}
_TRIED, _KEPT = 20, 5  # iterations from every start, and of how many the best go on to the end
_LEAST = 6  # rows for five constants
_MOST_POWER = 700.0  # of e: beyond it there are no numbers


@dataclass(frozen=True, slots=True)
class LossFit:
    """A law fitted to ``rows`` runs, those of the ``left_out`` highest losses not among them.

    ``objective`` is the sum of Huber losses, ``worst`` the largest error of a loss as a fraction.
    """

    law: LossLaw
    rows: int
    left_out: int
    objective: float
    worst: float


def fit_loss_law(rows: Sequence[Row], source: str, *, left_out: int = 0, draws: int = 0) -> LossFit:
    """Fit the rows of a CSV file with columns parameters, loss, and tokens or compute (FLOP).

    ``left_out`` rows of the highest loss are not fitted; standard errors are those of so many bootstrap ``draws``.
    InputError for rows that are none, too few, or all alike.
    """
    table = np.array(list(_numbers(rows, source)))  # [row, (N, D, loss)]
    kept = np.argsort(table[:, 2], kind="stable")[: max(0, len(table) - left_out)]
    if len(kept) < _LEAST:
        raise InputError(f"{source}: {len(kept)} rows are left for five constants; {_LEAST} at least are needed")
    table = table[np.sort(kept)]
    for column, name in enumerate(("parameters", "tokens")):
        if np.ptp(np.log(table[:, column])) < 1e-9:
            raise InputError(f"{source}: all rows have the same {name}; a law of loss needs several of them")
    with located(source):
        return _fitted(table, source, left_out, draws)


def _fitted(table: Floats, source: str, left_out: int, draws: int) -> LossFit:
    from scipy.optimize import minimize

    logs = np.log(table)

    def minimum(start: Sequence[float] | Floats, most: int) -> Any:
        return minimize(_huber, start, args=(logs,), jac=True, method="BFGS", options={"maxiter": most})

    begun = sorted((minimum(start, _TRIED) for start in product(*_STARTS)), key=lambda each: float(each.fun))
    found = [minimum(each.x, 1000) for each in begun[:_KEPT]]
    good = [each for each in found if np.isfinite(each.x).all() and min(each.x[3:]) > 0]
    if not good:
        raise InputError(
            f"{source}: the losses do not fall with parameters and tokens; a law of loss needs runs of which the "
            f"larger end lower: "
            "leave out rows that were not trained to their end"
        )
    best = min(good, key=lambda each: float(each.fun))
    a, b, e, alpha, beta = (float(value) for value in best.x)
    spans = [(float(column.min()), float(column.max())) for column in table[:, :2].T]
    errors = _errors(best.x, logs, draws) if draws > 1 else {}
    try:
        law = LossLaw(
            name="fitted", E=_exp(e), A=_exp(a), alpha=alpha, B=_exp(b), beta=beta, errors=errors,
            parameters=spans[0], tokens=spans[1], source=f"{source}: {len(table)} runs",
        )  # fmt: skip
    except ValidationError:
        raise InputError(
            f"{source}: the law that fits best has E {_exp(e):.3g} and exponents {alpha:.3g} and {beta:.3g}, which "
            "is no law of loss (E of at most 100, exponents of at most 5); add "
            "runs of other sizes and numbers of tokens, or leave out those that stand twice"
        ) from None
    predicted = np.array([law.loss(parameters, tokens) for parameters, tokens, _ in table])
    worst = float(np.abs(predicted / table[:, 2] - 1).max())
    return LossFit(law, len(table), left_out, float(best.fun), worst)


def _terms(point: Floats, logs: Floats) -> tuple[Floats, Floats]:
    """(residuals of the logarithm of the loss, their derivatives [row, constant])."""
    a, b, e, alpha, beta = point
    sizes, tokens = logs[:, 0], logs[:, 1]
    terms = np.stack([a - alpha * sizes, b - beta * tokens, np.full_like(sizes, e)])
    top = terms.max(axis=0)
    weights = np.exp(terms - top)
    total = weights.sum(axis=0)
    weights /= total
    slopes = np.stack([*weights, -weights[0] * sizes, -weights[1] * tokens], axis=1)
    return top + np.log(total) - logs[:, 2], slopes


def _huber(point: Floats, logs: Floats) -> tuple[float, Floats]:
    """The objective and its gradient."""
    residuals, slopes = _terms(point, logs)
    size = np.abs(residuals)
    values = np.where(size <= DELTA, residuals**2 / 2, DELTA * (size - DELTA / 2))
    return float(values.sum()), np.clip(residuals, -DELTA, DELTA) @ slopes


def _exp(power: float) -> float:
    """e to a power; InputError for one beyond all numbers, where rows do not decide a constant."""
    if not power < _MOST_POWER:
        raise InputError(
            "the rows do not decide the constants: without some of them one is beyond all numbers; give runs "
            "of more "
            "sizes, or leave out a row that is far from the others"
        )
    return math.exp(power)


def _errors(best: Floats, logs: Floats, draws: int) -> dict[str, float]:
    """Standard errors by bootstrap: the rows drawn again with replacement, the fit begun where the whole one ended."""
    from scipy.optimize import minimize

    generator = np.random.Generator(np.random.Philox(0))
    found = []
    for _ in range(draws):
        again = logs[generator.integers(0, len(logs), len(logs))]
        a, b, e, alpha, beta = minimize(_huber, best, args=(again,), jac=True, method="BFGS").x
        found.append((_exp(e), _exp(a), alpha, _exp(b), beta))
    spread = np.std(np.array(found), axis=0, ddof=1)
    return dict(zip(("E", "A", "alpha", "B", "beta"), spread.tolist(), strict=True))


def _numbers(rows: Sequence[Row], source: str) -> Iterator[tuple[float, float, float]]:
    """(parameters, tokens, loss) of each row."""
    columns = columns_of_rows(rows)
    missing = [name for name in ("parameters", "loss") if columns[name] is None]
    if missing or (columns["tokens"] is None and columns["compute"] is None):
        missing = missing or ["tokens", "compute"]
        raise InputError(
            f"{source}: the rows have no column {' or '.join(missing)}; a law of loss is fitted to parameters, "
            f"loss, and tokens "
            f"or compute (FLOP): name the columns so; there are {', '.join(rows[0].texts)}"
        )
    for row in rows:
        parameters, loss = (positive(row, columns[name], source) for name in ("parameters", "loss"))
        if columns["tokens"] is not None:
            tokens = positive(row, columns["tokens"], source)
        else:
            tokens = positive(row, columns["compute"], source) / (FLOP_PER_TOKEN * parameters)
        yield parameters, tokens, loss


def columns_of_rows(rows: Sequence[Row]) -> dict[str, str | None]:
    """By parameters, tokens, compute and loss the column that has it; None where none does."""
    return {name: _column(rows[0].texts, spellings) for name, spellings in _NAMES.items()}


def _column(header: Mapping[str, str], spellings: Sequence[str]) -> str | None:
    return next((name for name in header if name.strip() in spellings), None)


def positive(row: Row, column: str | None, source: str) -> float:
    """The number of a row in a column; InputError where it is none above zero."""
    assert column is not None
    value = row.cells[column]
    if not is_number(value) or value <= 0:
        raise InputError(
            f"{source}: row {row.number}: {column}: {row.texts[column]!r} is not a number above zero; write one, as in "
            "3.1"
        )
    return float(value)
