"""Titles of scenarios that were changed after they were named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_MOST = 3  # changes that a title names


def titled(name: str, document: Mapping[str, Any], changes: Sequence[tuple[str, Any]]) -> str:
    """Return the name with the changes to its document: "tiny model, tp 2 (with parallel.tp 4)".

    A change that gives the name, or the value that the document already has, is not named.
    """
    last = dict(changes)
    changed = [(path, value) for path, value in last.items() if value != _value_at(document, path)]
    named = [_in_words(*change) for change in sorted(changed, key=lambda change: change[1] is None)]
    if not named or "name" in last:
        return name
    more = [f"{len(named) - _MOST} more"] if len(named) > _MOST else []
    return f"{name} (with {', '.join([*named[:_MOST], *more])})"


def _in_words(path: str, value: object) -> str:
    """The key and its value; the key alone where the value is a section or a list."""
    key = path.removesuffix("+")
    if isinstance(value, Mapping | list | tuple):
        return key
    return f"{key} {'default' if value is None else value}"


def _value_at(document: Mapping[str, Any], path: str) -> object:
    value: object = document
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
