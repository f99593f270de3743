"""Lists of answers as pandas DataFrames, with one row per answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from numbers import Number
from typing import TYPE_CHECKING, Any, TypeVar

from simcluster.base.shown import Shown

if TYPE_CHECKING:
    from pandas import DataFrame as DataFrame

T = TypeVar("T")


class Records(Shown, list[T]):
    """List of answers that is also a table: ``records.table`` has one row per answer."""

    @property
    def table(self) -> DataFrame:
        """Return the answers as a table: the numbers and texts of ``to_dict`` or of dataclass fields."""
        return frame_of(_said_by(each) for each in self)


def frame_of(rows: Iterable[Mapping[str, Any]], index: str | None = None) -> DataFrame:
    """Return rows as a table with columns of numbers and texts; lists of these become text.

    Other values are omitted; ``index`` is the column that names the rows.
    """
    import pandas as pd

    kept = [{name: _cell(value) for name, value in row.items() if _is_plain(value)} for row in rows]
    table = pd.DataFrame.from_records(kept)
    return table.set_index(index) if index and len(table) else table


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(each is None or isinstance(each, str | Number) for each in value)
    return value is None or isinstance(value, str | Number)


def _cell(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _said_by(answer: object) -> Mapping[str, Any]:
    said = getattr(answer, "to_dict", None)
    if said is not None:
        return said()  # type: ignore[no-any-return]
    assert is_dataclass(answer)
    return {each.name: getattr(answer, each.name) for each in fields(answer)}
