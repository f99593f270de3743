"""Columns of measured values in a study's table, converted from the source's unit to seconds or bytes.

Times are scored in seconds, so that studies can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, assert_never

from pydantic import BeforeValidator, Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from simcluster.base.errors import InputError
from simcluster.base.units import is_number
from simcluster.documents.base_spec import Spec
from simcluster.documents.diagnostics import KeyProblem, RuleError, join_or, quote_value
from simcluster.documents.table_formulas import Cell, column_formula_name, parse_formula
from simcluster.documents.yaml_documents import read_document
from simcluster.planning.footprint import Footprint, StepCounts
from simcluster.scenario.key_paths import ScenarioPath
from simcluster.traffic.nccl.tuner_query import bus_factor


def _check_formula(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)  # a number is a formula as well
    if isinstance(value, str):
        parse_formula(value)
    return value


FormulaText = Annotated[str, BeforeValidator(_check_formula)]
"""Formula over the columns of a table (``documents.table_formulas``)."""

Fraction = Annotated[float, Field(gt=0, lt=10)]
CellValue = StrictBool | StrictInt | StrictFloat | StrictStr | None


class InlineTable(Spec):
    """Short table within a study file: column names and rows (null is an empty cell)."""

    header: tuple[str, ...]
    rows: tuple[tuple[CellValue, ...], ...]

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        columns = len(self.header)
        broken: list[KeyProblem] = [
            (("rows", index), f"has {len(row)} cells, but the header has {columns} columns; give a cell for each")
            for index, row in enumerate(self.rows)
            if len(row) != columns
        ]
        repeated = [name for name in dict.fromkeys(self.header) if self.header.count(name) > 1]
        if repeated:
            broken.append((("header",), f"names {repeated[0]!r} twice; every column needs a unique name"))
        if not self.rows:
            broken.append((("rows",), "is empty; a study needs at least one measured run"))
        if broken:
            raise RuleError(broken)
        return self


class StudyBase(Spec):
    """Fields common to all validation studies: name, source, table, row filter, and assumptions.

    ``source`` is the paper and table, ``original`` where published runs can be found. ``table`` is the table itself, or
    the name of a CSV file in the directory of measured data ("x.csv"), or a path relative to the study ("./x.csv").
    ``where`` is a formula that selects rows. ``assumed`` lists what the source does not state.
    """

    name: str
    about: str = ""
    source: str
    original: str = ""
    table: InlineTable | str
    where: FormulaText | None = None
    assumed: tuple[str, ...] = ()


Quantity = Literal[
    "step_time", "tokens_per_s", "tokens_per_s_per_gpu", "samples_per_s", "flop_per_s_per_gpu", "mfu", "hfu"
]
Part = Literal[
    "forward", "backward", "recompute", "exposed_tp", "exposed_pp", "exposed_dp", "exposed_cp", "exposed_ep", "bubble",
    "optimizer",
]  # fmt: skip
_TABLES = read_document(Path(__file__).with_suffix(".yaml")).data
_UNITS: Mapping[str, Mapping[str, float]] = _TABLES["units"]
_BYTES: Mapping[str, float] = _TABLES["bytes"]


def _check_unit(quantity: str, unit: str) -> None:
    if unit not in _UNITS[quantity]:
        raise InputError(f"unit {unit!r} does not fit quantity {quantity}; use {join_or(_UNITS[quantity])}")


def _check_flop(value: object) -> object:
    if isinstance(value, str) and value not in ("model", "hardware"):
        parse_formula(value)
    return value


class MeasuredStepColumn(Spec):
    """Column of a study's table that holds the measured speed of a training step.

    Rates of FLOP and MFU need the source's count of a step's FLOP: "model" (3 x forward, causal attention at one half),
    "hardware" (with recompute), or the source's formula over the columns. For a part of a step, ``parts`` are the
    measured states of its breakdown (default: all), and ``less`` changes the scenario to one whose step (or parts) is
    subtracted, such as one with a layer fewer.
    """

    column: str
    quantity: Quantity
    unit: str
    flop: Annotated[str, BeforeValidator(_check_flop)] | None = None
    parts: tuple[Part, ...] = ()
    less: dict[ScenarioPath, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_flop_and_parts(self) -> Self:
        _check_unit(self.quantity, self.unit)
        counts = self.quantity in ("flop_per_s_per_gpu", "mfu", "hfu")
        if counts and self.flop is None:
            raise InputError(f"quantity {self.quantity} needs 'flop': model, hardware, or a formula for a step's FLOP")
        if self.flop is not None and not counts:
            raise InputError(f"quantity {self.quantity} does not use 'flop'; remove 'flop'")
        if (self.parts or self.less) and self.quantity != "step_time":
            raise InputError(f"'parts' and 'less' apply only to quantity step_time, not to {self.quantity}")
        return self

    def seconds(self, cells: Mapping[str, Cell], counts: StepCounts) -> float:
        """Return a row's measured step time (s); raise InputError unless the cell is positive."""
        value = read_positive_cell(cells, self.column) * _UNITS[self.quantity][self.unit]
        if self.quantity == "step_time":
            return value
        per_gpu = self._step_flop(cells, counts) / counts.ranks if self.flop else 0.0
        amounts = {
            "tokens_per_s": counts.tokens, "tokens_per_s_per_gpu": counts.tokens / counts.ranks,
            "samples_per_s": counts.samples, "flop_per_s_per_gpu": per_gpu,
        }  # fmt: skip
        return amounts.get(self.quantity, per_gpu / counts.peak_flops) / value  # otherwise a fraction of the peak

    def _step_flop(self, cells: Mapping[str, Cell], facts: StepCounts) -> float:
        if self.flop == "model":
            return facts.model_flops
        if self.flop == "hardware":
            return facts.hardware_flops
        found = parse_formula(str(self.flop)).evaluate({column_formula_name(key): cell for key, cell in cells.items()})
        if not is_number(found) or found <= 0:
            raise InputError(f"the formula {self.flop!r} gives {found!r} FLOP per step; it must give a number above 0")
        return float(found)


class MeasuredCollectiveColumn(Spec):
    """Column of a study's table that holds the measured speed of a collective; cells may be empty."""

    column: str
    quantity: Literal["time", "bus_bandwidth", "algorithm_bandwidth"]
    unit: str

    @model_validator(mode="after")
    def _check_unit(self) -> Self:
        _check_unit(self.quantity, self.unit)
        return self

    def seconds(self, cells: Mapping[str, Cell], collective: str, ranks: int, size: float) -> float:
        """Return a row's measured collective time (s); raise InputError unless the cell is positive."""
        value = read_positive_cell(cells, self.column) * _UNITS[self.quantity][self.unit]
        if self.quantity == "time":
            return value
        factor = bus_factor(collective, ranks) if self.quantity == "bus_bandwidth" else 1.0  # type: ignore[arg-type]
        return size * factor / value


class MeasuredMemoryColumn(Spec):
    """Column of a study's table that holds measured bytes per GPU; cells may be empty.

    ``quantity``: all allocated memory, the model state (parameters, gradients, optimizer), or activations. ``of``: the
    stage that holds most, or the mean over the stages. In "%", the column is relative to the same row with the values
    of ``baseline``.
    """

    column: str
    quantity: Literal["total", "model_state", "activations"]
    unit: Literal["GB", "GiB", "MB", "MiB", "%"]
    of: Literal["fullest", "mean"] = "fullest"
    baseline: dict[ScenarioPath, Any] | None = None

    @model_validator(mode="after")
    def _check_baseline(self) -> Self:
        if (self.unit == "%") != (self.baseline is not None):
            raise InputError("a column in % needs 'baseline', and no other column may have it")
        return self

    @property
    def scale(self) -> float:
        """Bytes per unit of the column; 0.01 for %, which is relative to the baseline."""
        return 0.01 if self.unit == "%" else _BYTES[self.unit]

    def predicted_bytes(self, footprints: tuple[Footprint, ...]) -> float:
        """Return the predicted value of the column (bytes), from each pipeline stage's memory footprint."""
        if self.of == "mean":
            return sum(map(self._stage_bytes, footprints)) / len(footprints)
        return self._stage_bytes(max(footprints, key=lambda footprint: footprint.total))

    def _stage_bytes(self, footprint: Footprint) -> float:
        if self.quantity == "activations":
            return footprint.activations
        if self.quantity == "model_state":
            return footprint.parameters + footprint.gradients + footprint.optimizer
        if self.quantity == "total":
            return footprint.total
        assert_never(self.quantity)


def read_positive_cell(cells: Mapping[str, Cell], column: str) -> float:
    """Return the number in a row's cell; raise InputError unless the cell holds a positive number."""
    got = cells[column]
    if not is_number(got) or got <= 0:
        raise InputError(f"column {column} is {'empty' if got is None else quote_value(got)}; it must be a number > 0")
    return float(got)
