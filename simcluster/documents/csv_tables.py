"""Readers of CSV files: tables of runs, histograms, relative speeds of ranks, and all-to-all message sizes."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError, prefix_errors
from simcluster.base.units import parse_bytes
from simcluster.documents.diagnostics import quote_value
from simcluster.documents.input_files import decode_utf8, missing_file_hint, read_input_bytes
from simcluster.documents.table_formulas import Cell, column_formula_name, whole_float_to_int

_INTEGER = re.compile(r"[+-]?\d{1,18}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One row of a CSV table: its ``number`` (from 1), and its ``cells`` (parsed) and ``texts`` by column."""

    number: int
    cells: Mapping[str, Cell]
    texts: Mapping[str, str]

    def cells_by_formula_name(self) -> dict[str, Cell]:
        """Return the row's cells by the names that formulas use for the columns."""
        return {column_formula_name(column): cell for column, cell in self.cells.items()}

    def label(self, columns: Sequence[str]) -> str:
        """Return a label for the row: its texts in these columns, or "row N" if the texts are empty."""
        texts = [self.texts[column] for column in columns if self.texts[column]]
        return ", ".join(texts) or f"row {self.number}"


def read_csv(path: Path) -> tuple[CsvRow, ...]:
    """Read a CSV file with a header line and return its rows; comment lines (#) may precede the header.

    Raises InputError, with the row, for a file that is not such a table.
    """
    header, rows = read_csv_texts(path)
    return tuple(
        CsvRow(number, dict(zip(header, map(_parse_cell, cells), strict=True)), cell_texts_by_column(header, cells))
        for number, cells in enumerate(rows, start=1)
    )


def read_csv_texts(path: Path) -> tuple[list[str], list[list[str]]]:
    """Read a CSV file as ``read_csv`` does; return the header, and the cells of each row as texts."""
    if not path.exists():
        raise InputError(f"{path}: no such file{missing_file_hint(path, path.suffix or '.csv')}")
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            lines = list(csv.reader(dropwhile(_is_comment_line, stream), strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        what = f"byte {problem.start} is not UTF-8" if isinstance(problem, UnicodeDecodeError) else problem
        raise InputError(
            f"{path}: cannot be read as a CSV file in UTF-8: {what}; save it as UTF-8, with commas between cells"
        ) from None
    if len(lines) < 2:
        raise InputError(f"{path}: has no rows; write a header and one line per row, or name another file")
    header, *rows = lines
    repeated = [name for name in dict.fromkeys(header) if header.count(name) > 1]
    if repeated:
        raise InputError(f"{path}: the header names {repeated[0]!r} twice; column names must be unique: rename one")
    for number, cells in enumerate(rows, start=1):
        other = next((sign for sign in ";\t|" if len(header) == 1 and sign in header[0]), "")
        if other:
            raise InputError(
                f"{path}: columns are separated by {quote_value(other)} instead of commas; save the file with commas"
            )
        if len(cells) != len(header):
            raise InputError(
                f"{path}: row {number} has {len(cells)} cells, but the header has {len(header)} columns; "
                "write one cell per column in each row, and put text with a comma in quotes"
            )
    return header, rows


def _is_comment_line(line: str) -> bool:
    return line.startswith("#")


def cell_texts_by_column(header: Sequence[str], cells: Sequence[Cell]) -> dict[str, str]:
    """Return a row's cells as texts by column; booleans are in lower case, empty cells are ""."""
    texts = ["" if cell is None else str(cell).lower() if isinstance(cell, bool) else str(cell) for cell in cells]
    return dict(zip(header, texts, strict=True))


def _parse_cell(text: str) -> Cell:
    text = text.strip()
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return whole_float_to_int(float(text))
    return text or None


_MOST = 1e18


def read_histogram(path: str | Path) -> dict[str, Any]:
    """Read a histogram file with lines "value,frequency"; return the lists ``values`` and ``weights``.

    One column is values of equal weight. A first line without numbers is a header; empty lines and text after a # do
    not count. Raises InputError, with the line, for anything but numbers.
    """
    lines = decode_utf8(read_input_bytes(path), str(path)).splitlines()
    rows: list[tuple[float, float]] = []
    for number, line in enumerate(lines, start=1):
        cells = [cell.strip() for cell in line.partition("#")[0].split(",")]
        if not any(cells):
            continue
        try:
            found = [float(cell) for cell in cells]
        except ValueError:
            if not rows and number == 1:
                continue  # a header
            raise InputError(
                f"{path}:{number}: {line.strip()!r} is not a list of numbers; write only numbers, with "
                f"commas between them"
            ) from None
        if len(found) > 2 or not all(math.isfinite(value) and value >= 0 for value in found):
            raise InputError(
                f"{path}:{number}: {line.strip()!r} is not a value and a weight, numbers of at least 0; "
                f"write them as in 1024,3"
            )
        rows.append((found[0], found[1] if len(found) == 2 else 1.0))
    if not rows:
        raise InputError(f"{path}: has no values; write one value per line, with its weight after a comma")
    return {"values": [value for value, _ in rows], "weights": [weight for _, weight in rows]}


def read_relative_speeds(path: str | Path, item: str = "rank") -> list[list[float]]:
    """Read a file of relative speeds with lines "number,speed" (``3,0.97``); return [number, speed] pairs.

    ``item`` is the item that has the speed: rank, node. A header, empty lines and text after a # do not count. Raises
    InputError, with the line, for anything else.
    """
    found: list[list[float]] = []
    for number, line in enumerate(decode_utf8(read_input_bytes(path), str(path)).splitlines(), start=1):
        cells = [cell.strip() for cell in line.partition("#")[0].split(",")]
        if not any(cells):
            continue
        try:
            number_of, speed = cells
            found.append([int(number_of), float(speed)])
        except ValueError:
            if found or any(cell[:1].isdigit() for cell in cells):
                raise InputError(f"{path}:{number}: {line.strip()!r} is not {item},speed, as in 3,0.97") from None
    if not found:
        raise InputError(f"{path}: has no line with a {item} and its speed; write lines such as 3,0.97")
    return found


def read_message_sizes(path: str) -> tuple[tuple[float, ...], ...]:
    """Read a square table of message sizes (bytes): row i, column j holds the bytes that rank i sends to rank j.

    A cell is a size with its unit ("4 MiB") or a plain number of bytes; empty lines and lines that begin with # do not
    count. Raises InputError, with the line, unless it is a square of sizes of 0 or more, at least one above 0.
    """
    rows: list[tuple[float, ...]] = []
    lines: list[int] = []
    for line, text in enumerate(decode_utf8(read_input_bytes(path), path).splitlines(), 1):
        if text.strip() and not text.lstrip().startswith("#"):
            where = f"{path}:{line}"
            rows.append(tuple(_parse_message_size(cell.strip(), where) for cell in _split_csv_line(text, where)))
            lines.append(line)
    wrong = next((place for place, row in enumerate(rows) if len(row) != len(rows)), None)
    if wrong is not None:
        raise InputError(
            f"{path}:{lines[wrong]}: {len(rows[wrong])} sizes in this row, but {len(rows)} rows; the table must be "
            f"square: write {len(rows)} sizes per row, in row i, column j those from rank i to rank j"
        )
    if len(rows) < 2:
        raise InputError(
            f"{path}: has sizes of {len(rows)} rank{'s' * (len(rows) != 1)}; at least 2 are needed: write more rows"
        )
    if not any(size for row in rows for size in row):
        raise InputError(f"{path}: all sizes are 0; at least one must be above 0: write its size")
    return tuple(rows)


def _split_csv_line(text: str, where: str) -> list[str]:
    try:
        return next(csv.reader([text]))
    except csv.Error as problem:
        raise InputError(f"{where}: is not a row of a CSV file: {problem}; put text with commas in quotes") from None


def _parse_message_size(text: str, where: str) -> float:
    try:
        size = float(text)
    except ValueError:
        with prefix_errors(where):
            size = parse_bytes(text)
    if not 0 <= size <= _MOST:
        raise InputError(f"{where}: {text!r} is not the size of a message; write 0 or more bytes, up to 1 EB")
    return size
