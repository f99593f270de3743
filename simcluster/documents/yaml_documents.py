"""Reading and validation of YAML and JSON documents, with the location of every key for error messages.

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

from pydantic import BaseModel, TypeAdapter, ValidationError

from simcluster.base.errors import InputError
from simcluster.base.gc_pause import pause_gc
from simcluster.documents import input_files
from simcluster.documents.builtin_documents import builtin_folder
from simcluster.documents.diagnostics import KeyPath, RuleError, format_path, list_validation_problems, quote_value
from simcluster.documents.suggestions import missing_space_hint
from simcluster.documents.yaml_syntax import KeyLocation as KeyLocation
from simcluster.documents.yaml_syntax import explain_json_error, parse_yaml

M = TypeVar("M", bound=BaseModel)

STDIN = "-"
"""Path that denotes standard input."""
_STDIN = "<stdin>"
_MAX_BYTES = 1_000_000
_MAX_PROBLEMS = 5


@dataclass(frozen=True, slots=True)
class Document:
    """Data of one YAML file or of several merged files, and the location of every key (``marks``).

    ``folder`` is what relative paths inside the document are relative to.
    """

    data: dict[str, Any]
    source: str
    folder: Path
    marks: Mapping[KeyPath, KeyLocation] = field(default_factory=dict)

    def location_of(self, path: KeyPath) -> KeyLocation:
        """Return the location of the key at ``path``; for a missing key, that of the nearest parent key."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.marks:
                place, written = self.marks[path[:length]]
                return KeyLocation(place, (*written, *path[length:]))
        return KeyLocation(self.source, path)

    def error_at(self, path: KeyPath, message: str) -> InputError:
        """Return an InputError with ``message`` and the location of the key at ``path``."""
        place, written = self.location_of(path)
        return InputError(": ".join(part for part in (place, format_path(written), message) if part))

    @contextmanager
    def locate_errors_at(self, path: KeyPath) -> Iterator[None]:
        """Add the location of the value at ``path`` to any InputError raised inside the ``with`` block."""
        try:
            yield
        except InputError as problem:
            raise self.error_at(path, str(problem)) from None


# --- files ----------------------------------------------------------------------------------------------------------


def read_document(path: str | Path) -> Document:
    """Read a YAML file, or standard input (``-``); raise InputError unless its content is a mapping."""
    path = Path(path)
    if path.parent in map(builtin_folder, ("scenarios", "topologies")):  # wherever the package is installed
        known = _parse_builtin_document(_read_yaml_text(path), f"built-in {path.name}", path.parent)
        return replace(known, data=deepcopy(known.data))  # the caller may change the copy
    source = _STDIN if str(path) == STDIN else str(path)
    return parse_document(_read_yaml_text(path), source=source, folder=path.parent)


@lru_cache(maxsize=16)
def _parse_builtin_document(text: str, source: str, folder: Path) -> Document:
    """Parse a built-in document, with a cache, since all variants of a scenario read the same topology."""
    return parse_document(text, source=source, folder=folder)


def parse_document(text: str, *, source: str = "<text>", folder: str | Path = ".") -> Document:
    """Parse a YAML text that must hold a mapping; error messages refer to the text as ``source``."""
    if not text.strip():
        raise InputError(f"{source}: the file is empty; it must be a mapping: write one, such as 'name: my run'")
    with pause_gc():  # without the pause, 1 MB takes 5 s instead of 2 s
        data, marks = parse_yaml(text, source)
    if data is None:
        raise InputError(f"{source}: the file holds only comments; a mapping such as 'name: my run' is expected")
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else f"the single value {quote_value(data)}"
        use = missing_space_hint(data) if isinstance(data, str) else ""
        use = use or ("" if source.endswith((".yaml", ".yml")) else input_files.command_hint(source))
        raise InputError(
            f"{source}: the file holds {kind}; a mapping such as 'name: my run' is expected at the top{use}"
        )
    return Document(data=data, source=source, folder=Path(folder), marks=marks)


def read_json(path: str | Path) -> dict[str, Any]:
    """Read a JSON file that must hold an object, and return the object as a dict."""
    path = Path(path)
    data = parse_json(_read_yaml_text(path), str(path), object_pairs_hook=require_unique_keys)
    if not isinstance(data, dict):
        raise InputError(f"{path}: holds {quote_value(data)}; a JSON object {{...}} is expected")
    return data


def parse_json(text: str, source: str, **hooks: Any) -> Any:
    """Parse a JSON text with ``json.loads(text, **hooks)``; raise InputError with the location of an error."""
    try:
        return json.loads(text, **hooks)
    except InputError as problem:
        raise InputError(f"{source}: {problem}") from None
    except json.JSONDecodeError as problem:
        raise InputError(
            f"{source}:{problem.lineno}:{problem.colno}: not valid JSON: {explain_json_error(problem.msg)}"
        ) from None
    except (RecursionError, ValueError):  # ValueError: an integer of thousands of digits
        raise InputError(f"{source}: not usable JSON: nested too deeply, or a number is too long; shorten it") from None


def require_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Convert a JSON object's pairs to a dict (an ``object_pairs_hook``); raise InputError for a repeated key."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InputError(f"the key {quote_value(key)} appears twice; keep one")
        found[key] = value
    return found


def parse_yaml_value(text: str, source: str) -> Any:
    """Parse a text as one YAML value, such as the right side of an override."""
    return parse_yaml(text, source)[0]


@cache
def _read_standard_input() -> bytes:
    """Return standard input's bytes, cached, since a command may read its scenario twice."""
    return sys.stdin.buffer.read(_MAX_BYTES + 1)


def _read_yaml_text(path: Path) -> str:
    try:
        if str(path) == STDIN:
            raw = _read_standard_input()
        else:
            with path.open("rb") as file:
                raw = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file{input_files.missing_file_hint(path)}") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder; name a YAML file in it{input_files.folder_files_hint(path)}") from None
    except (OSError, ValueError) as problem:  # ValueError: a NUL character in the path
        raise input_files.unreadable_file_error(path, problem) from None
    if len(raw) > _MAX_BYTES:
        raise InputError(f"{path}: is larger than {_MAX_BYTES:,} bytes, the limit for such files; name a smaller file")
    if b"\0" in raw:
        what, works = input_files.identify_file_type(raw)
        raise InputError(f"{path}: is {what}; YAML text is expected: {works}")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise InputError(f"{path}: byte {problem.start} is not UTF-8; save the file as UTF-8 text") from None


# --- documents against models ---------------------------------------------------------------------------------------


class DocumentUnion(Generic[M]):
    """Union of the pydantic models that a document may match, with a pydantic adapter that validates documents.

    Error messages need the annotation, since they list the known keys.
    """

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        self.adapter: TypeAdapter[M] = TypeAdapter(annotation)


def validate_document(target: type[M] | DocumentUnion[M], document: Document) -> M:
    """Validate a document as a pydantic model or a union of models; raise InputError with up to 5 problems."""
    if isinstance(target, DocumentUnion):
        with convert_pydantic_errors(document, target.annotation):
            return target.adapter.validate_python(document.data)
    with convert_pydantic_errors(document, target):
        return target.model_validate(document.data)  # unlike a new adapter, it builds the model's validator only once


@contextmanager
def convert_pydantic_errors(document: Document, annotation: Any) -> Iterator[None]:
    """Convert pydantic errors raised in the ``with`` block to one InputError with keys and lines in the document."""
    try:
        yield
        return
    except ValidationError as error:
        found = list_validation_problems(error, annotation, document.data)
    except RuleError as problems:
        found = list(problems.complaints)
    lines = [str(document.error_at(path, what)) for path, what in found]
    if len(lines) != 1:
        hidden = [f"and {len(lines) - _MAX_PROBLEMS} more"] if len(lines) > _MAX_PROBLEMS else []
        lines = [f"{document.source}: {len(lines)} problems", *lines[:_MAX_PROBLEMS], *hidden]
    raise InputError("\n  ".join(lines)) from None
