"""ACCELERATORS.md: every accelerator has its files and lines, one function, an allow-list and a test.

``python tests/test_accelerators.py`` writes the lines anew.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "docs" / "ACCELERATORS.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TABLE.read_text().splitlines()
    if line.startswith("|") and "`" in line and line.count("|") == 7
]
each = pytest.mark.parametrize("row", ROWS, ids=[row[0].partition(":")[0] for row in ROWS])


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def lines(row: list[str]) -> int:
    """Those of the files named."""
    found = [ROOT / "simcluster" / name for name in words(row[1])]
    files = [file for path in found for file in (path.glob("*.py") if path.is_dir() else [path])]
    return sum(len(file.read_text().splitlines()) for file in files)


def there(name: str) -> object:
    """A value of the package by its dotted name."""
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        try:
            found: object = importlib.import_module(".".join(["simcluster", *parts[:end]]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise AssertionError(name)


@each
def test_an_accelerator_is_what_its_row_says(row: list[str]) -> None:
    assert abs(int(row[2]) - lines(row)) <= 0.05 * lines(row), "python tests/test_accelerators.py writes them anew"
    assert all(there(name) for name in words(row[3]) + words(row[4]))
    assert all((ROOT / name).exists() for name in words(row[5]))


if __name__ == "__main__":
    text = TABLE.read_text()
    for known in ROWS:
        before = f"{known[1]} | {known[2]} |"
        assert before in text
        text = text.replace(before, f"{known[1]} | {lines(known)} |")
    TABLE.write_text(text)
