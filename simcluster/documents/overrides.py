"""Overrides of a document: dotted paths set to values, or lists extended.

A path followed by ``+`` (``faults+=[...]``, ``{"faults+": [...]}``) extends the list there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import KeyPath, dotted, shown, type_name
from simcluster.documents.own_words import trust_text
from simcluster.documents.reading import Document, Mark, parse_value

ADDS = "+"
"""Suffix of a path whose value is added to the existing list."""

Overrides = Mapping[str, Any] | Iterable[tuple[str, Any]]
Changes = Mapping[str, Any] | Iterable[str | tuple[str, Any]]
"""Overrides: {"parallel.tp": 4}, [("parallel.tp", 4)] or ["parallel.tp=4"]."""


def parse_override(text: str) -> tuple[str, Any]:
    """Return ("parallel.tp", 8) for "parallel.tp=8"; the value is read as YAML.

    "faults+=[...]" is ("faults+", [...]).
    """
    path, equals, value = text.partition("=")
    path = path.strip()
    if not equals or not path.removesuffix(ADDS) or not all(path.removesuffix(ADDS).split(".")):
        raise InputError(f"{text!r} is not an override; write it as parallel.tp=8")
    return path, trust_text(parse_value(value, text))


def expand_vary(text: str) -> tuple[str, list[Any]]:
    """Return a path and its values: ("pipeline.schedule", ["gpipe", "1f1b"]); brackets protect commas."""
    path, equals, values = text.partition("=")
    path = path.strip()
    if not equals or not path or not all(path.split(".")):
        raise InputError(f"{text!r} does not name what varies; write it as pipeline.schedule=gpipe,1f1b")
    parts = _split_commas(values)
    if any(not part.strip() for part in parts):
        raise InputError(f"{text!r} has an empty value; write it as pipeline.schedule=gpipe,1f1b")
    return path, trust_text([parse_value(part, text) for part in parts])


def _split_commas(text: str) -> list[str]:
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
            if letter == "," and depth == 0:
                parts.append("")
                continue
        parts[-1] += letter
    return parts


def pairs_of(changes: Changes) -> list[tuple[str, Any]]:
    """Return changes as pairs of a dotted path and a value; raise InputError for other types."""
    if isinstance(changes, str):
        changes = [changes]
    items = changes.items() if isinstance(changes, Mapping) else changes
    pairs = [parse_override(item) if isinstance(item, str) else item for item in _each(items)]
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise InputError(f'changes are {{"parallel.tp": 4}} or ["parallel.tp=4"], got {shown(pair)}')
    return pairs


def _each(items: object) -> Iterable[Any]:
    if isinstance(items, Iterable) and getattr(items, "ndim", True):  # an array without an axis says that it is one
        return items
    raise InputError(f'changes are {{"parallel.tp": 4}} or ["parallel.tp=4"], got {type_name(items)}')


def apply_overrides(document: Document, overrides: Overrides) -> Document:
    """Return the document with values set at dotted paths; missing parents are created, later ones win.

    None removes the key, which restores its default. A path that ends in ``+`` adds an item, or the items of a list, to
    the list there. InputError for a path that the document cannot have.
    """
    pairs = list(overrides.items() if isinstance(overrides, Mapping) else overrides)
    data, marks = _copy(document.data), dict(document.marks)
    for name, value in pairs:
        if name.endswith(ADDS):
            marks |= {path: Mark("override", path) for path in _add(data, name.removesuffix(ADDS), value)}
            continue
        path, top = _set(data, name, value), name.partition(".")[0]
        for below in [known for known in marks if known[: len(path)] == path]:
            del marks[below]
        marks[path] = Mark("override", path)
        if top not in document.data:  # a section that the override makes is its own, too
            marks[top,] = Mark("override", (top,))
    return replace(document, data=data, marks=marks)


def change_in_place(data: dict[str, Any], changes: Changes) -> None:
    """Set dotted paths in a document in place, as ``apply_overrides`` does in a copy."""
    for name, value in pairs_of(changes):
        if name.endswith(ADDS):
            _add(data, name.removesuffix(ADDS), value)
        else:
            _set(data, name, value)


def _set(data: dict[str, Any], name: str, value: Any) -> KeyPath:
    """Set one dotted path in place; numbers are indices where there is a list, keys elsewhere."""
    current: Any = data
    path: list[str | int] = []
    parts = name.split(".")
    for position, part in enumerate(parts):
        last = position == len(parts) - 1
        key: str | int = part
        if isinstance(current, list):
            if not part.isdecimal() or int(part) >= len(current):
                have = f"positions 0 to {len(current) - 1}" if current else "no items: set the whole list"
                raise InputError(f"override {name}: {dotted(tuple(path))} is a list with {have}, got {part!r}")
            key = int(part)
        elif not isinstance(current, dict):
            there = dotted(tuple(path))
            raise InputError(
                f"override {name}: {there} is {shown(current)}, it has no key {part!r}; set {there} itself"
            )
        path.append(key)
        if last and value is None and isinstance(current, dict):
            current.pop(key, None)
            break
        if last:
            current[key] = _copy(value)
        elif isinstance(current, dict) and current.get(part) is None:
            current[part] = {}
        current = current[key]
    return tuple(path)


def _add(data: dict[str, Any], name: str, value: Any) -> list[KeyPath]:
    """Add to the list at a dotted path in place; return the paths of its new items."""
    added = list(value) if isinstance(value, list | tuple) else [value]
    current: Any = data
    for part in name.split("."):
        below = current[int(part)] if isinstance(current, list) and _is_place(part, current) else None
        current = current.get(part) if isinstance(current, Mapping) else below
    if current is not None and not isinstance(current, list | tuple):
        raise InputError(
            f"override {name}{ADDS}: {name} is {shown(current)}, not a list that can be extended; write "
            f"{name}=VALUE to replace it"
        )
    before = list(current or ())
    path = _set(data, name, [*before, *added])
    return [(*path, len(before) + number) for number in range(len(added))]


def _is_place(part: str, items: list[Any]) -> bool:
    return part.isdecimal() and int(part) < len(items)


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list | tuple) else value
