"""Lists of result objects that convert to pandas DataFrames, one row per object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from numbers import Number
from typing import TYPE_CHECKING, Any, TypeVar

from simcluster.base.display import Displayable

if TYPE_CHECKING:
    from pandas import DataFrame as DataFrame

T = TypeVar("T")


class Records(Displayable, list[T]):
    """List of result objects with a ``table``: a DataFrame with one row per object."""

    @property
    def table(self) -> DataFrame:
        """DataFrame of the objects' numbers and texts, taken from ``to_dict`` or from dataclass fields."""
        return rows_to_frame(_fields_to_row(each) for each in self)


def rows_to_frame(rows: Iterable[Mapping[str, Any]], index: str | None = None) -> DataFrame:
    """Make a DataFrame of the numbers and texts in ``rows``; a list in a cell is joined into one text.

    Other values are omitted; ``index`` is the column that names the rows.
    """
    import pandas as pd

    kept = [{name: _cell_value(value) for name, value in row.items() if _is_number_or_text(value)} for row in rows]
    table = pd.DataFrame.from_records(kept)
    return table.set_index(index) if index and len(table) else table


def _is_number_or_text(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(each is None or isinstance(each, str | Number) for each in value)
    return value is None or isinstance(value, str | Number)


def _cell_value(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _fields_to_row(answer: object) -> Mapping[str, Any]:
    if (said := getattr(answer, "to_dict", None)) is not None:
        return said()  # type: ignore[no-any-return]
    assert is_dataclass(answer)
    return {each.name: getattr(answer, each.name) for each in fields(answer)}
