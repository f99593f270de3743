"""Merging of table rows: ranks or groups with identical cells share one row."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_MAX_RANGES = 4
"""Maximum number of ranges in a label."""
_NUMBERED = re.compile(r"(.*?)(\d+)")


class MergedRows(NamedTuple):
    """Names of the table rows that have identical cells, and these cells."""

    names: list[str]
    cells: tuple[str, ...]


def merge_equal_rows(rows: Iterable[tuple[str, Sequence[str]]]) -> list[MergedRows]:
    """Merge table rows (name, cells) with identical cells, in order of first appearance."""
    found: dict[tuple[str, ...], MergedRows] = {}
    for name, cells in rows:
        key = tuple(cells)
        found.setdefault(key, MergedRows([], key)).names.append(name)
    return list(found.values())


def join_names(names: Sequence[str]) -> str:
    """Return a short label for several names: 'layers.24-31', 'rank 0-3, 8' or 'forward and 6 more'."""
    matches = [match for match in map(_NUMBERED.fullmatch, names) if match]
    if 1 < len(names) == len(matches) and len({match[1] for match in matches}) == 1:
        runs = _join_ranges(sorted(int(match[2]) for match in matches))
        more = f" and {len(runs) - _MAX_RANGES} more ranges" if len(runs) > _MAX_RANGES else ""
        return f"{matches[0][1]}{', '.join(runs[:_MAX_RANGES])}{more}"
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _join_ranges(numbers: Sequence[int]) -> list[str]:
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in found]
