"""The matrix that ``nvidia-smi topo -m`` prints, as text: its columns, rows and cells, with their lines."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from simcluster.base.errors import InputError

CLASSES = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Classes of PCIe paths, from the nearest to the farthest."""

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_AFTER = ("CPU", "NUMA", "CPU Affinity", "NUMA Affinity", "")  # heads of columns that are not of the matrix


@dataclass(frozen=True, slots=True)
class Matrix:
    """The pairs: ``cells[a, b]`` both ways; ``numa`` of the GPUs that say it; ``lines`` of the rows."""

    source: str
    names: tuple[str, ...]
    lines: dict[str, int]
    cells: dict[tuple[str, str], str]
    numa: dict[str, str]
    nics: dict[str, str]  # NIC0: mlx5_0

    @property
    def gpus(self) -> list[str]:
        """The columns that are GPUs."""
        return [name for name in self.names if is_gpu(name)]

    def nvlinks(self, a: str, b: str) -> int:
        """NVLinks between a pair (in the order of ``names``)."""
        cell = self.cells[a, b]
        return int(cell[2:]) if cell.startswith("NV") else 0


def is_matrix_header(line: str) -> bool:
    """Whether a line is the head of a matrix: it names GPU0 and more columns, and is not a row."""
    words = _ANSI.sub("", line).split() if "GPU0" in line else []
    return bool(words) and words[0] == "GPU0" and (len(words) == 1 or words[1] != "X")


def parse_matrix(text: str, source: str) -> Matrix:
    """The matrix in the text, whatever stands around it; InputError with the line of what does not fit."""
    lines = [_ANSI.sub("", line) for line in text.splitlines()]
    head = next((i for i, line in enumerate(lines) if is_matrix_header(line)), None)
    if head is None:
        raise InputError(
            f"{source}: no line is the head of a matrix (GPU0 GPU1 ...); give what nvidia-smi topo -m prints"
        )
    words = _words(lines[head])
    names = tuple(itertools.takewhile(lambda word: word not in _AFTER, words))
    _check_names(names, f"{source}:{head + 1}")
    rows: dict[str, tuple[int, list[str]]] = {}
    for number, line in enumerate(lines[head + 1 :], head + 2):
        words = _words(line)
        if not words or words[0].startswith("Legend"):
            if rows:
                break
            continue
        where = f"{source}:{number}"
        if words[0] not in names:
            raise InputError(
                f"{where}: row {words[0][:40]!r} has no column; the columns are {', '.join(names[:20])}: "
                "is the text cut off?"
            )
        if words[0] in rows:
            raise InputError(f"{where}: row {words[0]} is already at line {rows[words[0]][0]}; each row is there once")
        rows[words[0]] = (number, words[1:])
    missing = [name for name in names if name not in rows]
    if missing:
        raise InputError(f"{source}:{head + 1}: there is no row for {', '.join(missing[:8])}; is the text cut off?")
    return Matrix(
        source=source,
        names=names,
        lines={name: rows[name][0] for name in names},
        cells=_cells(names, rows, source),
        numa=_numa(lines[head], names, rows),
        nics=dict(re.findall(r"^\s*(NIC\d+): (\S+)\s*$", "\n".join(lines), re.MULTILINE)),
    )


def _words(line: str) -> list[str]:
    """The cells of a line: between tabs as printed, or between blanks if somebody's editor made blanks of the tabs."""
    if "\t" in line:
        cells = [cell.strip() for cell in line.split("\t")]
        return cells[1:] if not cells[0] else cells
    return line.split()


def _check_names(names: Sequence[str], where: str) -> None:
    if len(names) > 512:
        raise InputError(f"{where}: {len(names)} columns; a machine has fewer")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{where}: two columns are called {twice}; each is there once")


def _cells(names: Sequence[str], rows: dict[str, tuple[int, list[str]]], source: str) -> dict[tuple[str, str], str]:
    cells: dict[tuple[str, str], str] = {}
    for a in names:
        number, words = rows[a]
        if len(words) < len(names):
            raise InputError(f"{source}:{number}: row {a} has {len(words)} cells of {len(names)}; is the text cut off?")
        for b, cell in zip(names, words, strict=False):
            nvlink = re.fullmatch(r"NV[1-9]\d?", cell)
            if (cell == "X") != (a == b) or not (cell == "X" or cell in CLASSES or nvlink):
                expected = "X (itself)" if a == b else "NV#, " + ", ".join(CLASSES)
                raise InputError(f"{source}:{number}: {a} - {b} is {cell[:40]!r}; it is one of {expected}")
            if nvlink and not (is_gpu(a) and is_gpu(b)):
                raise InputError(f"{source}:{number}: {a} - {b} is {cell}; NVLink joins GPUs only")
            back = cells.get((b, a))
            if back is not None and back != cell:
                raise InputError(
                    f"{source}:{number}: {a} - {b} is {cell} but {b} - {a} (line {rows[b][0]}) is {back}; "
                    "the matrix is symmetric"
                )
            cells[a, b] = cell
    return cells


def _numa(head: str, names: Sequence[str], rows: dict[str, tuple[int, list[str]]]) -> dict[str, str]:
    """NUMA node of the GPUs that say one: the second column after the matrix, as long as no cell of it is empty."""
    if "NUMA Affinity" not in " ".join(head.split()):
        return {}
    found = {name: rows[name][1][len(names) :][1:2] for name in names if is_gpu(name)}
    return {name: cell[0] for name, cell in found.items() if cell and cell[0].isdigit()}


def is_gpu(name: str) -> bool:
    """Whether a column is a GPU; the others are NICs."""
    return re.fullmatch(r"GPU\d+", name) is not None
