"""Natural order of names, in which spine2 comes before spine10."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

Key: TypeAlias = tuple[tuple[int, str], ...]
_PARTS = re.compile(r"\d+|\D+")


def natural(name: str) -> Key:
    """Sort key that compares the numbers in names as numbers."""
    return tuple(map(_key, _PARTS.findall(name)))


def naturals(names: Iterable[str]) -> list[Key]:
    """``natural`` of many names, whose parts are looked at once each: those of a cluster's switches have few."""
    known = _Keys()
    return [tuple(map(known.__getitem__, _PARTS.findall(name))) for name in names]


class _Keys(dict[str, tuple[int, str]]):
    """Keys of parts of names, made when they are first asked for."""

    def __missing__(self, part: str) -> tuple[int, str]:
        found = self[part] = _key(part)
        return found


def _key(part: str) -> tuple[int, str]:
    return (int(part), "") if part.isdecimal() else (-1, part)
