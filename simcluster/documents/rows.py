"""The rows of a table of measured runs, or of variants, and how a CSV file is read."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import shown
from simcluster.documents.expressions import Cell, name_of, whole
from simcluster.documents.given_files import why_missing

_INTEGER = re.compile(r"[+-]?\d{1,18}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class Row:
    """One measured run: ``number`` counts from 1 in the table, ``cells`` are typed, ``texts`` as they are written."""

    number: int
    cells: Mapping[str, Cell]
    texts: Mapping[str, str]

    def by_name(self) -> dict[str, Cell]:
        """The cells under the names that formulas use."""
        return {name_of(column): cell for column, cell in self.cells.items()}

    def label(self, columns: Sequence[str]) -> str:
        """What people call the row: the texts of the columns, or its number."""
        texts = [self.texts[column] for column in columns if self.texts[column]]
        return ", ".join(texts) or f"row {self.number}"


def _in_words(problem: Exception) -> str:
    """Return why a file cannot be read, without the words of the decoder."""
    return f"byte {problem.start} is none of it" if isinstance(problem, UnicodeDecodeError) else str(problem)


def read_csv(path: Path) -> tuple[Row, ...]:
    """The rows of a CSV file with a line of headers, above which lines may begin with #; InputError for a file that is
    none, with its row."""
    if not path.exists():
        raise InputError(f"{path}: no such file{why_missing(path, path.suffix or '.csv')}")
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            lines = list(csv.reader(dropwhile(_is_comment, stream), strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise InputError(
            f"{path}: cannot be read as a CSV file in UTF-8: {_in_words(problem)}; save it as text in UTF-8, "
            f"with a comma "
            f"between cells"
        ) from None
    if len(lines) < 2:
        raise InputError(
            f"{path}: has no rows; a line of headers and a line for each row are expected: write them, or name another"
        )
    header, *rows = lines
    repeated = [name for name in dict.fromkeys(header) if header.count(name) > 1]
    if repeated:
        raise InputError(f"{path}: the header names {repeated[0]!r} twice; every column has its own name")
    for number, cells in enumerate(rows, start=1):
        other = next((sign for sign in ";\t|" if len(header) == 1 and sign in header[0]), "")
        if other:
            raise InputError(
                f"{path}: its columns are separated by {shown(other)}; cells are separated by commas: save it so"
            )
        if len(cells) != len(header):
            raise InputError(
                f"{path}: row {number} has {len(cells)} cells, and the header has {len(header)} columns; "
                "give every row a cell for each column, and put a text that holds a comma in quotes"
            )
    return tuple(
        Row(number, {name: _typed(text) for name, text in zip(header, cells, strict=True)}, texts_of(header, cells))
        for number, cells in enumerate(rows, start=1)
    )


def _is_comment(line: str) -> bool:
    return line.startswith("#")


def texts_of(header: Sequence[str], cells: Sequence[Cell]) -> dict[str, str]:
    """The cells of a row as they are written, by column."""
    texts = ["" if cell is None else str(cell).lower() if isinstance(cell, bool) else str(cell) for cell in cells]
    return dict(zip(header, texts, strict=True))


def _typed(text: str) -> Cell:
    """Return a cell of a CSV file as None, a number, or text."""
    text = text.strip()
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return whole(float(text))
    return text or None
