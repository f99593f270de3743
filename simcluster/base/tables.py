"""Tables of answers: what a function returns a list of, as a pandas DataFrame with a row each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")


class Records(list[T]):
    """A list of answers that is a table as well: ``records.table``, a row each."""

    @property
    def table(self) -> pd.DataFrame:
        """What each says of itself (``to_dict``, or the fields of a dataclass): its numbers and texts in columns."""
        return frame_of(_said_by(each) for each in self)


def frame_of(rows: Iterable[Mapping[str, Any]], index: str | None = None) -> pd.DataFrame:
    """Rows as a table, in the order of their keys: numbers and texts, lists of such as text; mappings are left out.

    ``index`` is the column that names the rows.
    """
    import pandas as pd

    table = pd.DataFrame.from_records([{k: _cell(v) for k, v in row.items() if not _is_nested(v)} for row in rows])
    return table.set_index(index) if index and len(table) else table


def _is_nested(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(isinstance(each, Mapping | list | tuple) for each in value)
    return isinstance(value, Mapping)


def _cell(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _said_by(answer: object) -> Mapping[str, Any]:
    said = getattr(answer, "to_dict", None)
    if said is not None:
        return said()  # type: ignore[no-any-return]
    assert is_dataclass(answer)
    return {each.name: getattr(answer, each.name) for each in fields(answer)}
