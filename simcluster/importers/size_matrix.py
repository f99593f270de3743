"""The sizes of an uneven all-to-all from a CSV file, row by sender, column by receiver."""

from __future__ import annotations

import csv

from simcluster.base.errors import InputError
from simcluster.base.units import parse_bytes
from simcluster.importers.files import decode, read_bytes

_MOST = 1e18


def read_sizes(path: str) -> tuple[tuple[float, ...], ...]:
    """``sizes[i][j]``: bytes from rank i to rank j of the group.

    A cell is a size with its unit ("4 MiB") or a plain number of bytes; lines that are empty or begin with # do not
    count.  InputError, with the line, for what is not a square of sizes of 0 or more, at least one above 0.
    """
    rows: list[tuple[float, ...]] = []
    lines: list[int] = []
    for line, text in enumerate(decode(read_bytes(path), path).splitlines(), 1):
        if text.strip() and not text.lstrip().startswith("#"):
            rows.append(tuple(_size(cell.strip(), f"{path}:{line}") for cell in _cells(text, f"{path}:{line}")))
            lines.append(line)
    wrong = next((place for place, row in enumerate(rows) if len(row) != len(rows)), None)
    if wrong is not None:
        raise InputError(
            f"{path}:{lines[wrong]}: {len(rows[wrong])} sizes in a file of {len(rows)} rows; it must be square: row i, "
            "column j is what rank i sends to rank j"
        )
    if len(rows) < 2:
        raise InputError(f"{path}: sizes of {len(rows)} rank{'s' * (len(rows) != 1)}; a group has at least 2")
    if not any(size for row in rows for size in row):
        raise InputError(f"{path}: all sizes are 0; at least one message has a size above 0")
    return tuple(rows)


def _cells(text: str, where: str) -> list[str]:
    try:
        return next(csv.reader([text]))
    except csv.Error as problem:
        raise InputError(f"{where}: is no row of a CSV file: {problem}") from None


def _size(text: str, where: str) -> float:
    try:
        size = float(text)
    except ValueError:
        try:
            size = parse_bytes(text)
        except InputError as problem:
            raise InputError(f"{where}: {problem}") from None
    if not 0 <= size <= _MOST:
        raise InputError(f"{where}: {text!r} is not the size of a message; it is 0 or more bytes, up to 1 EB")
    return size
