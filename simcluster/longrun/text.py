"""Numbers and tables of long runs as text, and as JSON has them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from simcluster.base.units import DAY

if TYPE_CHECKING:
    import pandas as pd


def text_of_blocks(*blocks: Iterable[str]) -> str:
    """Return blocks of lines as text, with an empty line between those that have any."""
    return "\n\n".join(text for lines in blocks if (text := "\n".join(lines)))


def in_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines of aligned columns, none without rows: the first, and those of words (why ..., beyond ...), to the
    left."""
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    left = {0, *(place for place, name in enumerate(header) if name.startswith(("why", "beyond")))}
    lines = []
    for row in (header, *rows):
        cells = (cell.ljust(width) if place in left else cell.rjust(width)
                 for place, (cell, width) in enumerate(zip(row, widths, strict=True)))  # fmt: skip
        lines.append("  " + "  ".join(cells).rstrip())
    return lines


def row_of(table: pd.DataFrame, name: str) -> dict[str, float]:
    """Return a row of a table of numbers, by column."""
    return dict(zip(table.columns, table.loc[name].to_numpy(dtype=float).tolist(), strict=True))


def plain(value: Any) -> Any:
    """Return a value for JSON: numbers that are not finite (the interval of one run) become None."""
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def percent(share: float, digits: int = 2) -> str:
    """Return a share as "86.41 %"."""
    return f"{100 * share:.{digits}f} %"


def points(gap: float, half: float) -> str:
    """Return a difference of shares as "1.23 +- 0.04 points"."""
    return f"{within(100 * gap, 100 * half)} points"


def within(value: float, half: float, digits: int = 2) -> str:
    """Return a value and half its interval, "1.23 +- 0.04": with more digits where the half would be 0."""
    if half > 0:
        digits = max(digits, min(5, math.ceil(-math.log10(half))))
    return f"{value:,.{digits}f} +- {half:,.{digits}f}"


def duration(seconds: float) -> str:
    """Return a time as "17.5 s", "18.3 min" or "16.7 h"."""
    for unit, scale, below in (("s", 1.0, 120.0), ("min", 60.0, 7200.0), ("h", 3600.0, 48 * 3600.0)):
        if seconds < below:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / DAY:,.3g} d"
