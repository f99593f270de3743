"""YAML documents as plain data with the line of every key, and their validation.

It is YAML 1.2 without the parts that surprise: no tags, no anchors and aliases, no duplicate keys, one document per
file. All problems of a file are reported in one ``InputError`` with their locations.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from simcluster.base.errors import InputError
from simcluster.base.gc_paused import pause_gc
from simcluster.documents.composing import Mark as Mark
from simcluster.documents.composing import explain_json, parse_yaml
from simcluster.documents.diagnostics import Complaint, KeyPath, RuleError, format_path, list_complaints, shown
from simcluster.documents.given_files import identify_file, list_files, missing_file_hint, unreadable_error, usage_hint
from simcluster.documents.shipped import builtin_folder
from simcluster.documents.suggestions import colon_hint

M = TypeVar("M")

STDIN = "-"
"""Path that denotes standard input."""
_STDIN = "<stdin>"
_MAX_BYTES = 1_000_000
_MAX_PROBLEMS = 5


@dataclass(frozen=True, slots=True)
class Document:
    """Data of a YAML file, or of several merged files, with the location of every key (``marks``).

    ``folder`` is what relative paths inside the document are relative to.
    """

    data: dict[str, Any]
    source: str
    folder: Path
    marks: Mapping[KeyPath, Mark] = field(default_factory=dict)

    def location_of(self, path: KeyPath) -> Mark:
        """Return the location of the key at ``path``, or of its nearest parent that is in the document."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.marks:
                place, written = self.marks[path[:length]]
                return Mark(place, (*written, *path[length:]))
        return Mark(self.source, path)

    def error(self, path: KeyPath, message: str) -> InputError:
        """Return an InputError about the key at ``path``, with its location and ``message``."""
        place, written = self.location_of(path)
        return InputError(": ".join(part for part in (place, format_path(written), message) if part))

    @contextmanager
    def errors_at(self, path: KeyPath) -> Iterator[None]:
        """Add the location of the value at ``path`` to InputErrors raised inside the block."""
        try:
            yield
        except InputError as problem:
            raise self.error(path, str(problem)) from None


# --- files ----------------------------------------------------------------------------------------------------------


def read_document(path: str | Path) -> Document:
    """Read a YAML file, or standard input (``-``), that must be a mapping; otherwise raise InputError."""
    path = Path(path)
    if path.parent in map(builtin_folder, ("scenarios", "topologies")):  # wherever the package is installed
        known = _parse_builtin_document(_read_text(path), f"built-in {path.name}", path.parent)
        return replace(known, data=deepcopy(known.data))  # whoever asks may change it
    source = _STDIN if str(path) == STDIN else str(path)
    return parse_document(_read_text(path), source=source, folder=path.parent)


@lru_cache(maxsize=16)
def _parse_builtin_document(text: str, source: str, folder: Path) -> Document:
    """Return a built-in document, parsed once, since variants of a scenario read the same topology."""
    return parse_document(text, source=source, folder=folder)


def parse_document(text: str, *, source: str = "<text>", folder: str | Path = ".") -> Document:
    """Parse a YAML text that must be a mapping; ``source`` is its name in errors."""
    if not text.strip():
        raise InputError(f"{source}: the file is empty; it must be a mapping: write one, such as 'name: my run'")
    with pause_gc():  # 5 instead of 2 s of 1 MB
        data, marks = parse_yaml(text, source)
    if data is None:
        raise InputError(f"{source}: the file holds only comments; a mapping such as 'name: my run' is expected")
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else f"the single value {shown(data)}"
        use = colon_hint(data) if isinstance(data, str) else ""
        use = use or ("" if source.endswith((".yaml", ".yml")) else usage_hint(source))
        raise InputError(
            f"{source}: the file holds {kind}; a mapping such as 'name: my run' is expected at the top{use}"
        )
    return Document(data=data, source=source, folder=Path(folder), marks=marks)


def read_json(path: str | Path) -> dict[str, Any]:
    """Read a JSON file that must hold an object; raise InputError for other content."""
    path = Path(path)
    data = parse_json(_read_text(path), str(path), object_pairs_hook=unique_keys)
    if not isinstance(data, dict):
        raise InputError(f"{path}: holds {shown(data)}; a JSON object {{...}} is expected")
    return data


def parse_json(text: str, source: str, **hooks: Any) -> Any:
    """Parse a JSON text; InputError with the location if it is invalid or one of the ``hooks`` raises."""
    try:
        return json.loads(text, **hooks)
    except InputError as problem:
        raise InputError(f"{source}: {problem}") from None
    except json.JSONDecodeError as problem:
        raise InputError(
            f"{source}:{problem.lineno}:{problem.colno}: not valid JSON: {explain_json(problem.msg)}"
        ) from None
    except (RecursionError, ValueError):  # ValueError: an integer of thousands of digits
        raise InputError(f"{source}: not usable JSON: nested too deeply, or a number of thousands of digits") from None


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Convert a JSON object's pairs to a dict (an ``object_pairs_hook``); InputError for a repeated key."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InputError(f"the key {shown(key)} appears twice; keep one")
        found[key] = value
    return found


def parse_value(text: str, source: str) -> Any:
    """Parse one value as YAML, such as the right side of an override."""
    return parse_yaml(text, source)[0]


@cache
def _read_standard_input() -> bytes:
    """Return the bytes of standard input, read once, since a command may read its scenario again."""
    return sys.stdin.buffer.read(_MAX_BYTES + 1)


def _read_text(path: Path) -> str:
    try:
        if str(path) == STDIN:
            raw = _read_standard_input()
        else:
            with path.open("rb") as file:
                raw = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file{missing_file_hint(path)}") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder; name a YAML file in it{list_files(path)}") from None
    except (OSError, ValueError) as problem:  # ValueError: a NUL character in the path
        raise unreadable_error(path, problem) from None
    if len(raw) > _MAX_BYTES:
        raise InputError(f"{path}: is larger than {_MAX_BYTES:,} bytes, the most for such files; name a smaller one")
    if b"\0" in raw:
        what, works = identify_file(raw)
        raise InputError(f"{path}: is {what}; YAML text is expected: {works}")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise InputError(f"{path}: byte {problem.start} is not UTF-8; save the file as UTF-8 text") from None


# --- documents against models ---------------------------------------------------------------------------------------


class DocumentKinds(Generic[M]):
    """Annotation of a union of document kinds, with the pydantic adapter that validates them.

    Error messages need the annotation, since they list the known keys.
    """

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        self.adapter: TypeAdapter[M] = TypeAdapter(annotation)


def validate(target: type[M] | DocumentKinds[M], document: Document) -> M:
    """Validate a document as a model, or as one of several kinds; InputError with up to 5 problems."""
    kinds = target if isinstance(target, DocumentKinds) else DocumentKinds[M](target)
    with locate_errors(document, kinds.annotation):
        return kinds.adapter.validate_python(document.data)


@contextmanager
def locate_errors(document: Document, annotation: Any) -> Iterator[None]:
    """Convert pydantic's errors inside the block to one InputError with the document's keys and lines."""
    try:
        yield
        return
    except ValidationError as error:
        found = list_complaints(error, annotation, document.data)
    except RuleError as problems:
        found = list(problems.complaints)
    raise InputError(_format_complaints(found, document)) from None


def _format_complaints(found: list[Complaint], document: Document) -> str:
    lines = [str(document.error(path, what)) for path, what in found]
    if len(lines) == 1:
        return lines[0]
    hidden = f"\n  and {len(lines) - _MAX_PROBLEMS} more" if len(lines) > _MAX_PROBLEMS else ""
    return f"{document.source}: {len(lines)} problems\n  " + "\n  ".join(lines[:_MAX_PROBLEMS]) + hidden
