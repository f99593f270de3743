"""Format of a fit file: constants to fit, their bounds, and the measured rows to which they are fitted.

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
from simcluster.documents.base_spec import ONE_OR_MORE, Spec
from simcluster.documents.builtin_documents import builtin_path
from simcluster.documents.diagnostics import RuleError, did_you_mean, join_or
from simcluster.documents.yaml_documents import Document, read_document, validate_document
from simcluster.evidence.calibration.least_squares import Loss
from simcluster.evidence.validation.measured_columns import FormulaText
from simcluster.scenario.key_paths import check_key_path

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
        check_key_path(value)
    return value


ConstantPath = Annotated[str, BeforeValidator(_check_constant_path)]


class FittedConstant(Spec):
    """Declaration of a constant to fit: scenario path, bounds, value before the fit, and source.

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
            must = f"[{low:g}, {high:g}] must be a lower bound and a higher upper bound; write the lower one first"
            raise RuleError([(("bounds",), must)])
        if not low <= self.unfitted <= high:
            must = f"must lie within the bounds {low:g} to {high:g}"
            raise InputError(f"'unfitted' is {self.unfitted:g}; it {must}: change it, or widen the bounds")
        return self


class FitStudyRows(Spec):
    """Measured rows that a fit takes from a validation study: all rows that satisfy ``where``.

    The study's ``where`` applies as well. Formulas can use the columns, and ``row``, the row's number. ``model`` and
    ``scale`` are the groups that cross-validation leaves out together.
    """

    study: str
    where: FormulaText | None = None
    model: FormulaText | None = None
    scale: FormulaText | None = None


class FitKernelRows(Spec):
    """Measured kernels that a fit takes from a CSV file in the data folder, and the kernels' device.

    ``simumax``: matmuls with their efficiency, the shape as text, layout as in ``simcluster calibrate``.
    """

    kernels: str
    format: Literal["simumax"]
    device: str
    original: str


class FitDeclaration(Spec):
    """Declaration of a fit: constants to fit together, the measured rows, and the loss function.

    ``loss`` is of ln(predicted / measured). ``step``: distance of extra simulated points from the solution, as a
    fraction of each constant (of the upper bound, if the lower one is 0), for the slopes; it should be well above the
    roughness of the rows' times.
    """

    about: str = ""
    constants: Annotated[dict[Name, FittedConstant], Field(min_length=1)]
    rows: Annotated[tuple[FitStudyRows | FitKernelRows, ...], Field(min_length=1)]
    loss: Loss = "squares"
    step: Annotated[float, Field(gt=0, le=0.2)] = 0.01


class FitDeclarations(Spec):
    """Contents of a fit file: a declaration for each named fit."""

    about: str = ""
    fits: Annotated[dict[Name, FitDeclaration], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class FitFile:
    """Loaded fit file: the declared fits, and the parsed document that they are from."""

    fits: FitDeclarations
    document: Document

    def fit_error(self, fit: str, message: object) -> InputError:
        """Return an InputError about one fit, which states the fit's line in the file."""
        return self.document.error_at(("fits", fit), str(message))


def load_fits(path: str | Path | None = None) -> FitFile:
    """Load the fits declared in a file, or the built-in fits; raise InputError if the file is invalid."""
    document = read_document(path if path is not None else builtin_path("scenarios/fits", "constants"))
    return FitFile(validate_document(FitDeclarations, document), document)


def select_fits(file: FitFile, names: tuple[str, ...]) -> dict[str, FitDeclaration]:
    """Return the named fits (default: all fits in the file); raise InputError for an unknown name."""
    known = file.fits.fits
    for name in names:
        if name not in known:
            raise InputError(
                f"{file.document.source} has no fit {name!r}{did_you_mean(name, known)}; it has {join_or(known)}"
            )
    return {name: fit for name, fit in known.items() if not names or name in names}
