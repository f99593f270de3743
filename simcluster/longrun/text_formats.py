"""Text formats of long-run results: numbers, tables, DataFrames, and JSON values."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simcluster.base.counts import format_count, format_dollars, format_tokens, format_whole_dollars
from simcluster.base.units import DAY, HOUR, format_seconds
from simcluster.results.result_file import assumption_lines
from simcluster.show.output_blocks import TableBlock, TextLines

if TYPE_CHECKING:
    import pandas as pd

Columns = Sequence[tuple[str, str]]
"""Headings of a table, each with the format of its cells, whose names are columns of a row: "{days:.2f}"."""

_FORMATS: Mapping[str, Callable[[Any], str]] = {
    "count": format_count,
    "tokens": format_tokens,
    "dollars": format_whole_dollars,
    "short dollars": format_dollars,
    "seconds": format_seconds,
    "hours": lambda seconds: f"{seconds / HOUR:,.2f}",
    "MWh": lambda kwh: f"{kwh / 1e3:,.1f}",
}


class _CellFormatter(string.Formatter):
    def format_field(self, value: Any, spec: str) -> str:
        if isinstance(value, float) and math.isnan(value):
            return ""
        return _FORMATS[spec](value) if spec in _FORMATS else format(value, spec)


def table_blocks(rows: Iterable[Mapping[str, Any]], columns: Columns, **about: Any) -> list[TableBlock]:
    """Return rows as a list of one table (no table if no rows); ``about`` sets fields of ``TableBlock``."""
    cells = [format_cells(row, columns) for row in rows]
    return [TableBlock([head for head, _ in columns], cells, **{"indent": 2, **about})] if cells else []


def format_cells(row: Mapping[str, Any], columns: Columns) -> list[str]:
    """Format the cells of a table row as text."""
    return [_CellFormatter().vformat(form, (), row) for _, form in columns]


def format_remarks(assumed: Iterable[str], notes: Iterable[str] = ()) -> TextLines:
    """Format an answer's assumptions and notes as lines of text."""
    return TextLines([*assumption_lines(assumed), *(f"note: {note}" for note in notes)], "warning")


def make_frame(rows: Iterable[Sequence[Any]], columns: str, index: str = "") -> pd.DataFrame:
    """Return rows as a DataFrame; ``columns`` lists column names separated by spaces, ``index`` is one of these."""
    import pandas as pd

    table = pd.DataFrame(list(rows), columns=columns.split())
    return table.set_index(index) if index else table


def row_to_dict(table: pd.DataFrame, name: str) -> dict[str, float]:
    """Return one row of a numeric DataFrame, chosen by index label, as a dict from column to value."""
    return dict(zip(table.columns, table.loc[name].to_numpy(dtype=float).tolist(), strict=True))


def rows_to_dicts(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a DataFrame as dicts from column to value; a named index counts as a column."""
    frame = table if table.index.name is None else table.reset_index()
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def to_json_value(value: Any) -> Any:
    """Return a value that JSON can hold: None replaces numbers that are not finite."""
    if isinstance(value, dict):
        return {str(name): to_json_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def format_percent(share: float, digits: int = 2) -> str:
    """Format a share as text, such as "86.41 %"."""
    return f"{100 * share:.{digits}f} %"


def format_point_difference(gap: float, half_width: float) -> str:
    """Format a difference of two shares in percentage points, such as "1.23 +- 0.04 points"."""
    return f"{format_with_half_width(100 * gap, 100 * half_width)} points"


def format_with_half_width(value: float, half_width: float, digits: int = 2) -> str:
    """Format a value with half its interval, such as "1.23 +- 0.04"; add digits until the half is not 0."""
    if half_width > 0:
        digits = max(digits, min(5, math.ceil(-math.log10(half_width))))
    return f"{value:,.{digits}f} +- {half_width:,.{digits}f}"


def format_duration(seconds: float) -> str:
    """Format seconds as text, such as "17.5 s", "18.3 min" or "16.7 h"."""
    for unit, scale, below in (("s", 1.0, 120.0), ("min", 60.0, 7200.0), ("h", 3600.0, 48 * 3600.0)):
        if seconds < below:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / DAY:,.3g} d"


def format_energy(kwh: float) -> str:
    """Format an energy in kWh, MWh or GWh, with at least three digits."""
    for unit, scale in (("GWh", 1e6), ("MWh", 1e3)):
        if abs(kwh) >= 10 * scale:
            return f"{kwh / scale:,.4g} {unit}" if kwh < 1e4 * scale else f"{kwh / scale:,.0f} {unit}"
    return f"{kwh:,.4g} kWh"


def format_power(watts: float) -> str:
    """Format a power in W, kW or MW, with four digits."""
    unit, scale = next((each for each in (("MW", 1e6), ("kW", 1e3)) if abs(watts) >= each[1]), ("W", 1.0))
    return f"{watts / scale:.4g} {unit}"


def format_flop(compute: float, digits: int = 4) -> str:
    """Format FLOP as papers print them, such as "3.15e23 FLOP"."""
    return f"{compute:.{digits}g} FLOP".replace("e+", "e")
