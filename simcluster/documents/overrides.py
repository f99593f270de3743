"""Overrides of a document's values by dotted path (``parallel.tp=4``), and additions to its lists.

A path followed by ``+`` (``faults+=[...]``, ``{"faults+": [...]}``) extends the list there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import APPEND, KeyPath, format_path, quote_value, type_name
from simcluster.documents.trusted_text import mark_trusted_text
from simcluster.documents.yaml_documents import Document, KeyLocation, parse_yaml_value

Overrides = Mapping[str, Any] | Iterable[tuple[str, Any]]
Changes = Mapping[str, Any] | Iterable[str | tuple[str, Any]]
"""Overrides: {"parallel.tp": 4}, [("parallel.tp", 4)] or ["parallel.tp=4"]."""


def parse_override(text: str) -> tuple[str, Any]:
    """Parse "parallel.tp=8" into the pair ("parallel.tp", 8); the value may be any YAML value.

    "faults+=[...]" is ("faults+", [...]).
    """
    path, equals, value = text.partition("=")
    path = path.strip()
    if not equals or not path.removesuffix(APPEND) or not all(path.removesuffix(APPEND).split(".")):
        raise InputError(f"{text!r} is not an override; write PATH=VALUE, as in parallel.tp=8")
    return path, mark_trusted_text(parse_yaml_value(value, text))


def parse_vary_option(text: str) -> tuple[str, list[Any]]:
    """Parse "pipeline.schedule=gpipe,1f1b" into a path and values; commas inside brackets do not separate."""
    path, equals, values = text.partition("=")
    path = path.strip()
    if not equals or not path or not all(path.split(".")):
        raise InputError(f"{text!r} does not name the field to vary; write it as in pipeline.schedule=gpipe,1f1b")
    parts = _split_at_commas(values)
    if any(not part.strip() for part in parts):
        raise InputError(f"{text!r} has an empty value; write values as in pipeline.schedule=gpipe,1f1b")
    return path, mark_trusted_text([parse_yaml_value(part, text) for part in parts])


def _split_at_commas(text: str) -> list[str]:
    parts = [""]
    depth = 0
    quote = ""
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


def list_overrides(changes: Changes) -> list[tuple[str, Any]]:
    """Convert overrides to (dotted path, value) pairs; raise InputError for an object that is not overrides."""
    if isinstance(changes, str):
        changes = [changes]
    items = changes.items() if isinstance(changes, Mapping) else changes
    pairs = [parse_override(item) if isinstance(item, str) else item for item in _require_iterable(items)]
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise InputError(f'changes must be {{"parallel.tp": 4}} or ["parallel.tp=4"], got {quote_value(pair)}')
    return pairs


def _require_iterable(items: object) -> Iterable[Any]:
    if isinstance(items, Iterable) and getattr(items, "ndim", True):  # a 0-dimensional array is an Iterable
        return items
    raise InputError(f'changes must be {{"parallel.tp": 4}} or ["parallel.tp=4"], got {type_name(items)}')


def apply_overrides(document: Document, overrides: Overrides) -> Document:
    """Return a copy of the document with values set at dotted paths; later overrides win.

    Missing parents are created. None removes the key, which restores its default. A path that ends in ``+`` adds an
    item, or the items of a list, to the list there. InputError for a path that the document cannot have.
    """
    pairs = list(overrides.items() if isinstance(overrides, Mapping) else overrides)
    data, marks = _copy_nested_value(document.data), dict(document.marks)
    for name, value in pairs:
        if name.endswith(APPEND):
            marks |= {key: KeyLocation("override", key) for key in _extend_list(data, name.removesuffix(APPEND), value)}
            continue
        path, top = _set_at_path(data, name, value), name.partition(".")[0]
        for below in [known for known in marks if known[: len(path)] == path]:
            del marks[below]
        marks[path] = KeyLocation("override", path)
        if top not in document.data:  # the override also creates this section
            marks[top,] = KeyLocation("override", (top,))
    return replace(document, data=data, marks=marks)


def apply_overrides_in_place(data: dict[str, Any], changes: Changes) -> None:
    """Set values at dotted paths of a document itself; ``apply_overrides`` changes a copy instead."""
    for name, value in list_overrides(changes):
        if name.endswith(APPEND):
            _extend_list(data, name.removesuffix(APPEND), value)
        else:
            _set_at_path(data, name, value)


def _set_at_path(data: dict[str, Any], name: str, value: Any) -> KeyPath:
    current: Any = data
    path: list[str | int] = []
    parts = name.split(".")
    for position, part in enumerate(parts):
        last = position == len(parts) - 1
        key: str | int = part
        if isinstance(current, list):
            if not part.isdecimal() or int(part) >= len(current):
                have = f"use 0 to {len(current) - 1}" if current else "it is empty: set the whole list"
                raise InputError(f"override {name}: {format_path(tuple(path))} has no item {part!r}; {have}")
            key = int(part)
        elif not isinstance(current, dict):
            there = format_path(tuple(path))
            raise InputError(
                f"override {name}: {there} is {quote_value(current)}, which has no key {part!r}; set {there} instead"
            )
        path.append(key)
        if last and value is None and isinstance(current, dict):
            current.pop(key, None)
            break
        if last:
            current[key] = _copy_nested_value(value)
        elif isinstance(current, dict) and current.get(part) is None:
            current[part] = {}
        current = current[key]
    return tuple(path)


def _extend_list(data: dict[str, Any], name: str, value: Any) -> list[KeyPath]:
    added = list(value) if isinstance(value, list | tuple) else [value]
    current: Any = data
    for part in name.split("."):
        below = current[int(part)] if isinstance(current, list) and _is_valid_index(part, current) else None
        current = current.get(part) if isinstance(current, Mapping) else below
    if current is not None and not isinstance(current, list | tuple):
        raise InputError(
            f"override {name}{APPEND}: {name} is {quote_value(current)}, not a list that can be extended; write "
            f"{name}=VALUE to replace it"
        )
    before = list(current or ())
    path = _set_at_path(data, name, [*before, *added])
    return [(*path, len(before) + number) for number in range(len(added))]


def _is_valid_index(part: str, items: list[Any]) -> bool:
    return part.isdecimal() and int(part) < len(items)


def _copy_nested_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy_nested_value(item) for key, item in value.items()}
    return [_copy_nested_value(item) for item in value] if isinstance(value, list | tuple) else value
