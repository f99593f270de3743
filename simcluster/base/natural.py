"""Natural order of names, in which spine2 comes before spine10."""

from __future__ import annotations

import re


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sort key that compares the numbers in names as numbers."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part)
