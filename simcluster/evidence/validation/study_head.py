"""What every study file says, whatever it studies: its table, its source, and formulas over the table's columns."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BeforeValidator, Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from simcluster.documents.diagnostics import Complaint, RuleError
from simcluster.documents.expressions import parse_formula
from simcluster.documents.spec import Spec


def _formula(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)  # a number alone is a formula too
    if isinstance(value, str):
        parse_formula(value)
    return value


FormulaText = Annotated[str, BeforeValidator(_formula)]
"""A formula over the columns, see ``expressions``."""

Fraction = Annotated[float, Field(gt=0, lt=10)]
CellValue = StrictBool | StrictInt | StrictFloat | StrictStr | None


class InlineTable(Spec):
    """A short table, copied: names of its columns, and rows of as many cells (null where there is nothing)."""

    header: tuple[str, ...]
    rows: tuple[tuple[CellValue, ...], ...]

    @model_validator(mode="after")
    def _rectangular(self) -> Self:
        broken: list[Complaint] = [
            (
                ("rows", index),
                f"has {len(row)} cells, and the header has {len(self.header)} columns; give a cell for each",
            )
            for index, row in enumerate(self.rows)
            if len(row) != len(self.header)
        ]
        repeated = [name for name in dict.fromkeys(self.header) if self.header.count(name) > 1]
        if repeated:
            broken.append((("header",), f"names {repeated[0]!r} twice; every column has its own name"))
        if not self.rows:
            broken.append((("rows",), "is empty; a study needs at least one measured run"))
        if broken:
            raise RuleError(broken)
        return self


class StudyHead(Spec):
    """What all studies say.

    ``source`` is the paper and table, ``original`` where anybody finds it, of runs that are
    published.  ``table`` is the table itself, or the name
    of a CSV file in the directory of measured data ("x.csv"), or a path relative to the study ("./x.csv").  ``where``
    is a formula that a row must fulfil to take part.  ``assumed`` lists what the source does not say.
    """

    name: str
    about: str = ""
    source: str
    original: str = ""
    table: InlineTable | str
    where: FormulaText | None = None
    assumed: tuple[str, ...] = ()
