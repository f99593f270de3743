"""Tables of results: every column has the name of the result JSON, and older names of columns are still understood."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from simcluster.results.metrics import BREAKDOWN

if TYPE_CHECKING:
    import pandas as pd

OLDER_NAMES: Mapping[str, str] = {
    **{name: f"breakdown_s.{name}" for name in BREAKDOWN},
    "memory": "peak_memory_bytes",
}
"""Names of columns that are no keys of the result JSON, each with the one that is."""


def result_table(rows: Iterable[Mapping[str, Any]], index: pd.Index | None = None) -> pd.DataFrame:
    """Return rows as a DataFrame whose columns are also found by their older names."""
    table: pd.DataFrame = _table_type()(list(rows), index=index)
    return table


@cache
def _table_type() -> Any:
    """Return the class ``ResultTable``, made when it is first asked for: pandas takes long to import."""
    import pandas as pd

    class ResultTable(pd.DataFrame):
        """A DataFrame; columns that are asked for by older names are returned under these."""

        @property
        def _constructor(self) -> type:
            return ResultTable

        def __getitem__(self, key: Any) -> Any:
            if isinstance(key, str) and key not in self.columns and OLDER_NAMES.get(key) in self.columns:
                return super().__getitem__(OLDER_NAMES[key]).rename(key)
            if isinstance(key, list) and any(each in OLDER_NAMES for each in key if isinstance(each, str)):
                known = [each if each in self.columns else OLDER_NAMES.get(each, each) for each in key]
                return super().__getitem__(known).set_axis(key, axis=1)
            return super().__getitem__(key)

        def __getattr__(self, name: str) -> Any:  # type: ignore[misc]
            if OLDER_NAMES.get(name) in self.columns:
                return self[name]
            return super().__getattr__(name)

    ResultTable.__qualname__ = "ResultTable"  # as pickle finds it
    return ResultTable


def __getattr__(name: str) -> Any:
    if name == "ResultTable":
        return _table_type()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
