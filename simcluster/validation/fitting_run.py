"""Fit declared constants on measured rows, and say how well they would have done on rows that were left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from simcluster.calibration.least_squares import Parameter, Solution, Vector, least_squares
from simcluster.errors import InputError
from simcluster.validation.fitting import Fit, FitFile, FittedConstant
from simcluster.validation.fitting_rows import Question, Sample, Settings, samples_of
from simcluster.validation.tables import Missing

LEAVE_OUT = ("model", "scale", "study")
_FOLD_POINTS = 6  # tried in each fold: it begins where all rows lead, next to its own answer

Progress = Callable[[str, str], object]
"""Called with a fit's name and what is being done."""


@dataclass(frozen=True, slots=True)
class Found:
    """One constant: what it would be unfitted, is today, and was found to be, with its standard error."""

    name: str
    declared: FittedConstant
    today: float
    value: float
    error: float | None
    at_bound: bool

    @property
    def off(self) -> float:
        """By how much what was found differs from what is used today, as a fraction of the latter."""
        return self.value / self.today - 1.0 if self.today else float("inf")


@dataclass(frozen=True, slots=True)
class FitRow:
    """A row with its prediction by the constants as they were found, unfitted, and as they are today; seconds."""

    sample: Sample
    measured: float
    fitted: float
    unfitted: float
    today: float

    @property
    def error(self) -> float:
        """Predicted over measured, minus 1."""
        return self.fitted / self.measured - 1.0


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Cross-validation: every group predicted by constants from the others; mean |error| over all rows that were.

    ``ratio`` is to the error of the same rows when nothing is left out.  ``skipped`` says why there is none.
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
class Outcome:
    """One fit as it came out; ``skipped`` says why it did not."""

    name: str
    fit: Fit
    constants: tuple[Found, ...] = ()
    rows: tuple[FitRow, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    evaluations: int = 0
    converged: bool = False
    skipped: str = ""

    def mean_error(self, which: str = "fitted") -> float:
        """Mean |predicted / measured - 1| of the rows: ``fitted``, ``unfitted`` or ``today``."""
        return float(np.mean([abs(getattr(row, which) / row.measured - 1.0) for row in self.rows]))


def run_fits(
    file: FitFile,
    names: Sequence[str],
    *,
    data: Path | None = None,
    workers: int = 1,
    cross_validate: bool = True,
    progress: Progress = lambda fit, what: None,
) -> list[Outcome]:
    """Every named fit, in order.

    All tables are read and all rows checked before anything is simulated.  Raises InputError for a fit whose paths its
    rows do not have, and for a row that cannot be predicted.
    """
    prepared = [(name, file.fits.fits[name], samples_of(file, name, data)) for name in names]
    with _asker(workers) as ask:
        return [
            Outcome(name, fit, skipped=samples.reason)
            if isinstance(samples, Missing)
            else _run(file, name, fit, samples, ask, cross_validate, partial(progress, name))
            for name, fit, samples in prepared
        ]


Ask = Callable[[Sequence[tuple[Question, Settings]]], list[tuple[float, float]]]


@contextmanager
def _asker(workers: int) -> Iterator[Ask]:
    if workers == 1:
        yield lambda asked: [_answer(each) for each in asked]
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield lambda asked: list(pool.map(_answer, asked, chunksize=max(1, len(asked) // (8 * workers))))


def _answer(asked: tuple[Question, Settings]) -> tuple[float, float]:
    question, settings = asked
    return question.predicted(settings)


class _Rows:
    """Rows asked for values of constants; what was asked before is remembered, since folds begin at the same place."""

    def __init__(self, fit: Fit, samples: Sequence[Sample], ask: Ask) -> None:
        self.fit, self.samples, self._ask = fit, samples, ask
        self._known: dict[tuple[int, Settings], tuple[float, float]] = {}
        self.asked = 0

    def settings(self, values: Sequence[float]) -> Settings:
        pairs = []
        for constant, value in zip(self.fit.constants.values(), values, strict=True):
            pairs += [(path, value) for path in constant.path]
            pairs += [(path, value * factor) for path, factor in constant.follow.items()]
        return tuple(pairs)

    def answers(self, places: Sequence[int], values: Sequence[float]) -> list[tuple[float, float]]:
        """(predicted, measured) of the rows at these places."""
        settings = self.settings(values)
        new = [place for place in places if (place, settings) not in self._known]
        self.asked += len(new)
        answers = self._ask([(self.samples[place].question, settings) for place in new])
        self._known.update({(place, settings): answer for place, answer in zip(new, answers, strict=True)})
        return [self._known[place, settings] for place in places]

    def residuals(self, places: Sequence[int], values: tuple[float, ...]) -> Vector:
        """ln(predicted / measured)."""
        found: Vector = np.log([predicted / measured for predicted, measured in self.answers(places, values)])
        return found


def _run(
    file: FitFile,
    name: str,
    fit: Fit,
    samples: list[Sample],
    ask: Ask,
    cross_validate: bool,
    progress: Callable[[str], object],
) -> Outcome:
    try:
        today = _today(fit, samples)
        rows, every = _Rows(fit, samples, ask), range(len(samples))
        unfitted = tuple(constant.unfitted for constant in fit.constants.values())
        progress(f"{len(unfitted)} constants on {len(samples)} rows")
        solution = _solved(rows, every, unfitted)
        columns = [rows.answers(every, values) for values in (solution.values, unfitted, today)]
    except InputError as problem:
        raise file.error(name, problem) from None
    kept = tuple(
        FitRow(sample, fitted[1], fitted[0], bare[0], now[0])
        for sample, fitted, bare, now in zip(samples, *columns, strict=True)
    )
    left_out = tuple(_left_out(by, rows, solution, progress) for by in LEAVE_OUT) if cross_validate else ()
    found = tuple(
        Found(each, declared, now, value, error, edge)
        for (each, declared), now, value, error, edge in zip(
            fit.constants.items(), today, solution.values, solution.errors, solution.at_bound, strict=True
        )
    )
    return Outcome(name, fit, found, kept, left_out, rows.asked, solution.converged)


def _today(fit: Fit, samples: Sequence[Sample]) -> tuple[float, ...]:
    """What each constant is now; InputError if rows that share it do not agree."""
    found = []
    for name, constant in fit.constants.items():
        values = [(each.label, each.question.today(path)) for each in samples for path in constant.path]
        first, *others = values
        for label, value in others:
            if value != first[1]:
                raise InputError(f"{name} is {first[1]:g} in {first[0]}, and {value:g} in {label}; rows must share it")
        found.append(first[1])
    return tuple(found)


def _solved(rows: _Rows, places: Sequence[int], start: Sequence[float], *, most: int = 20) -> Solution:
    """From ``start``; again from the middle of the bounds, where rows feel nothing of a constant at the end of that."""
    fit = rows.fit
    found: list[Solution] = []
    for values in (start, [_middle(constant) for constant in fit.constants.values()]):
        parameters = [
            Parameter(name, value, *constant.bounds)
            for (name, constant), value in zip(fit.constants.items(), values, strict=True)
        ]
        ask = partial(rows.residuals, places)
        found.append(least_squares(parameters, ask, loss=fit.loss, step=fit.step, most=most, tolerance=1e-4))
        if all(error is not None for error in found[-1].errors):
            break
    return min(found, key=lambda each: float(np.mean(np.abs(each.residuals))))


def _middle(constant: FittedConstant) -> float:
    low, high = constant.bounds
    return (low * high) ** 0.5 if low > 0 else high / 2


# --- rows left out ----------------------------------------------------------------------------------------------------


def _left_out(by: str, rows: _Rows, whole: Solution, progress: Callable[[str], object]) -> LeftOut:
    """Each group predicted by the constants that the others give; a study alone, by the unfitted ones."""
    groups: dict[str, list[int]] = {}
    for place, sample in enumerate(rows.samples):
        groups.setdefault(getattr(sample, by), []).append(place)
    if len(groups) < 2 and by != "study":
        why = "no formula says what a row's is" if "" in groups else "all rows are of one"
        return LeftOut(by, skipped=why)
    unfitted = tuple(constant.unfitted for constant in rows.fit.constants.values())
    errors: dict[str, float] = {}
    values: dict[str, tuple[float, ...]] = {}
    tested: list[float] = []
    before: list[float] = []
    for group, out in groups.items():
        others = [place for place in range(len(rows.samples)) if place not in out]
        if others and len(others) <= len(unfitted):
            return LeftOut(by, skipped=f"without {group!r} only {len(others)} rows are left")
        progress(f"without {by} {group}")
        values[group] = _solved(rows, others, whole.values, most=_FOLD_POINTS).values if others else unfitted
        own = [abs(p / m - 1.0) for p, m in rows.answers(out, values[group])]
        tested += own
        before += [abs(p / m - 1.0) for p, m in rows.answers(out, whole.values)]
        errors[group] = float(np.mean(own))
    error, fitted = float(np.mean(tested)), float(np.mean(before))
    worst = max(errors, key=lambda group: errors[group])
    return LeftOut(
        by,
        groups=len(groups),
        rows=len(tested),
        error=error,
        ratio=error / fitted if fitted else float("inf"),
        worst=f"{worst} ({errors[worst]:.1%})",
        values=tuple(values.items()),
    )
