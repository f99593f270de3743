"""The fit file: which constants were fitted, within which bounds, on which measured rows.

A constant is a path of a scenario (``cluster.device.matmul.power``, ``software.kernel``, ``training.dropout``) or a
number of a study (``constants.slowdown``). No constant is fitted for one model or one row: all rows of its fit share
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from simcluster.base.errors import InputError
from simcluster.base.units import parse_bytes, parse_bytes_per_second, parse_flop_per_second, parse_seconds
from simcluster.documents.diagnostics import RuleError, did_you_mean, listed
from simcluster.documents.reading import Document, read_document, validate
from simcluster.documents.shipped import shipped_path
from simcluster.documents.spec import ONE_OR_MORE, Spec
from simcluster.evidence.calibration.least_squares import Loss
from simcluster.evidence.validation.measured_columns import FormulaText
from simcluster.scenario.paths import check_path

Name = Annotated[str, Field(pattern=r"^[A-Za-z_][\w-]*$")]

CONSTANT_PREFIX = "constants."
DEVICE_PREFIX = "cluster.device."
SOFTWARE_PREFIX = "software."


def _parse_quantity(value: object) -> object:
    if not isinstance(value, str):
        return value
    for parse in (parse_seconds, parse_bytes, parse_bytes_per_second, parse_flop_per_second):
        try:
            return parse(value)
        except InputError:
            continue
    raise InputError(f"{value!r} is not a quantity; write a number, or one with a unit such as 57 us")


Quantity = Annotated[float, BeforeValidator(_parse_quantity), Field(ge=0)]


def _check_constant_path(value: object) -> object:
    if isinstance(value, str) and not value.startswith((CONSTANT_PREFIX, SOFTWARE_PREFIX)):
        check_path(value)
    return value


ConstantPath = Annotated[str, BeforeValidator(_check_constant_path)]


class FittedConstant(Spec):
    """Declaration of one constant to be fitted.

    ``path`` is its path (or several paths with the same value); ``follow`` has paths whose values are multiples of it.
    ``bounds`` limit it. ``unfitted`` is its value without a fit: where the search starts, and what is used for a study
    that had no part in the fit. ``source`` states why it is fitted and where ``unfitted`` comes from.
    """

    path: Annotated[tuple[ConstantPath, ...], ONE_OR_MORE, Field(min_length=1)]
    follow: dict[ConstantPath, float] = Field(default_factory=dict)
    bounds: tuple[Quantity, Quantity]
    unfitted: Quantity
    source: Annotated[str, Field(min_length=1)]

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        low, high = self.bounds
        if low >= high:
            must = f"[{low:g}, {high:g}] must be the lower and the upper bound; write the lower first"
            raise RuleError([(("bounds",), must)])
        if not low <= self.unfitted <= high:
            must = f"must lie within the bounds {low:g} to {high:g}"
            raise InputError(f"unfitted {self.unfitted:g} {must}; write one between them, or wider bounds")
        return self


class StudyRows(Spec):
    """Rows of a study that satisfy ``where`` (in addition to the study's ``where``).

    Formulas know the columns, and ``row``, the number of the row. ``model`` and ``scale`` are the groups that
    cross-validation leaves out together.
    """

    study: str
    where: FormulaText | None = None
    model: FormulaText | None = None
    scale: FormulaText | None = None


class KernelRows(Spec):
    """Measured kernels of a device: a CSV file among the measured data, in a known ``format``.

    ``simumax``: matmuls with their efficiency, the shape as text, layout as in ``simcluster calibrate``.
    """

    kernels: str
    format: Literal["simumax"]
    device: str
    original: str


class Fit(Spec):
    """Constants that are fitted together, and their rows; ``loss`` is of ln(predicted / measured).

    ``step``: distance of extra simulated points from the solution, as a fraction of each constant (of the upper bound,
    if the lower one is 0), for the slopes; it should be well above the roughness of the rows' times.
    """

    about: str = ""
    constants: Annotated[dict[Name, FittedConstant], Field(min_length=1)]
    rows: Annotated[tuple[StudyRows | KernelRows, ...], Field(min_length=1)]
    loss: Loss = "squares"
    step: Annotated[float, Field(gt=0, le=0.2)] = 0.01


class Fits(Spec):
    """Contents of a fit file."""

    about: str = ""
    fits: Annotated[dict[Name, Fit], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class FitFile:
    """A fit file with the document that it was read from."""

    fits: Fits
    document: Document

    def error(self, fit: str, message: object) -> InputError:
        """Return an error about one fit of the file."""
        return self.document.error(("fits", fit), str(message))


def load_fits(path: str | Path | None = None) -> FitFile:
    """Load the fits of a file, or the built-in ones; raise InputError that names file, line, key and a fix."""
    document = read_document(path if path is not None else builtin_fits())
    return FitFile(validate(Fits, document), document)


def builtin_fits() -> Path:
    """Return the path of the built-in fit file."""
    return shipped_path("scenarios/fits", "constants")


def select_fits(file: FitFile, names: tuple[str, ...]) -> dict[str, Fit]:
    """Return the fits of these names (default: all); raise InputError for an unknown name."""
    known = file.fits.fits
    for name in names:
        if name not in known:
            raise InputError(
                f"{file.document.source} has no fit {name!r}{did_you_mean(name, known)}; it has {listed(known)}"
            )
    return {name: fit for name, fit in known.items() if not names or name in names}
