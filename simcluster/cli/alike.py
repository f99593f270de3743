"""Rows of a table that say the same, as one: ranks and groups that do the same work are many, and their rows equal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_MOST = 4
"""Runs of numbers, or names, that a row shows."""
_NUMBERED = re.compile(r"(.*?)(\d+)")


class AlikeRows(NamedTuple):
    """What rows with the same cells are of, in their order."""

    names: list[str]
    cells: tuple[str, ...]


def alike(rows: Iterable[tuple[str, Sequence[str]]]) -> list[AlikeRows]:
    """Return rows (name, cells) by their cells, in the order of the first of each."""
    found: dict[tuple[str, ...], AlikeRows] = {}
    for name, cells in rows:
        key = tuple(cells)
        found.setdefault(key, AlikeRows([], key)).names.append(name)
    return list(found.values())


def together(names: Sequence[str]) -> str:
    """'layers.24-31' for layers.24 to layers.31, 'rank 0-3, 8', and 'forward and 6 more' for what has no numbers."""
    matches = [match for match in map(_NUMBERED.fullmatch, names) if match]
    if 1 < len(names) == len(matches) and len({match[1] for match in matches}) == 1:
        runs = _runs(sorted(int(match[2]) for match in matches))
        more = f" and {len(runs) - _MOST} runs more" if len(runs) > _MOST else ""
        return f"{matches[0][1]}{', '.join(runs[:_MOST])}{more}"
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _runs(numbers: Sequence[int]) -> list[str]:
    """Numbers, ascending, as runs of those that follow each other."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in found]
