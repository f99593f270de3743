"""A measured histogram in a CSV file: a value and how often it was seen, a line each."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.importers.files import decode, read_bytes


def histogram_in(path: str | Path) -> dict[str, Any]:
    """``values`` and ``weights`` of a file; one column is values that are all alike often.

    A first line without numbers is a header; empty lines and what follows a # do not count.  Raises InputError, with
    the line, for what is no number.
    """
    lines = decode(read_bytes(path), str(path)).splitlines()
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
            raise InputError(f"{path}:{number}: {line.strip()!r} has something that is no number") from None
        if len(found) > 2 or not all(math.isfinite(value) and value >= 0 for value in found):
            raise InputError(f"{path}:{number}: {line.strip()!r} should be a value and its weight, both from 0")
        rows.append((found[0], found[1] if len(found) == 2 else 1.0))
    if not rows:
        raise InputError(f"{path}: has no line with a value; write one a line, with its weight behind a comma")
    return {"values": [value for value, _ in rows], "weights": [weight for _, weight in rows]}
