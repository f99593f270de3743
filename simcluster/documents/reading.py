"""Documents that people write in YAML, as plain data that remembers the line of every key.

It is YAML 1.2 without the parts that surprise: no tags, no anchors and aliases, no
duplicate keys, one document a file.  Everything wrong with a file is one ``InputError`` that says where.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from pydantic import TypeAdapter, ValidationError

from simcluster.base.errors import InputError
from simcluster.base.gc_paused import collector_off
from simcluster.documents.composing import MAX_DEPTH, compose, place_of, too_deep
from simcluster.documents.diagnostics import (
    Complaint,
    KeyPath,
    RuleError,
    complaints,
    dotted,
    shown,
)
from simcluster.documents.given_files import files_in, kind_by_bytes, unreadable, used_for, why_missing
from simcluster.documents.parser_words import of_json
from simcluster.documents.shipped import shipped_folder
from simcluster.documents.suggestions import with_a_colon

if TYPE_CHECKING:
    from ruamel.yaml.nodes import Node

M = TypeVar("M")

STDIN = "-"
"""In place of a path: standard input."""
_PACKAGE = Path(__file__).parents[1]
_STDIN = "<stdin>"
_MAX_BYTES = 1_000_000
_MAX_PROBLEMS = 5
_TAG = "tag:yaml.org,2002:"


class Mark(NamedTuple):
    """Where a key is written: the place ("x.yaml:3:5") and its path there (other in a file that was merged in)."""

    place: str
    path: KeyPath


@dataclass(frozen=True, slots=True)
class Document:
    """What one file says, or several merged into one.  ``marks`` has the place of every key and item by its path.

    ``folder`` is what relative paths inside the document are relative to.
    """

    data: dict[str, Any]
    source: str
    folder: Path
    marks: Mapping[KeyPath, Mark] = field(default_factory=dict)

    def mark(self, path: KeyPath) -> Mark:
        """Where ``path`` is written; where its nearest written parent is, if it is not."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.marks:
                place, written = self.marks[path[:length]]
                return Mark(place, (*written, *path[length:]))
        return Mark(self.source, path)

    def error(self, path: KeyPath, message: str) -> InputError:
        """An error about one key: place, path and what is wrong."""
        place, written = self.mark(path)
        return InputError(": ".join(part for part in (place, dotted(written), message) if part))

    @contextmanager
    def told_at(self, path: KeyPath) -> Iterator[None]:
        """Inside, what cannot be read is an error of the value that names it."""
        try:
            yield
        except InputError as problem:
            raise self.error(path, str(problem)) from None


# --- files ----------------------------------------------------------------------------------------------------------


def read_document(path: str | Path) -> Document:
    """The mapping in a YAML file, or in standard input (``-``); InputError for anything else that a path leads to."""
    path = Path(path)
    if path.parent in map(shipped_folder, ("scenarios", "topologies")):  # wherever the package is installed
        known = _shipped_document(_read_text(path), f"shipped {path.name}", path.parent)
        return replace(known, data=deepcopy(known.data))  # whoever asks may change it
    source = _STDIN if str(path) == STDIN else str(path)
    return parse_document(_read_text(path), source=source, folder=path.parent, ships=path.is_relative_to(_PACKAGE))


@lru_cache(maxsize=16)
def _shipped_document(text: str, source: str, folder: Path) -> Document:
    """Read once: every variant of a scenario asks for the same topology again (10 ms)."""
    return parse_document(text, source=source, folder=folder, ships=True)


def parse_document(text: str, *, source: str = "<text>", folder: str | Path = ".", ships: bool = False) -> Document:
    """The mapping written in ``text``; ``source`` is what errors call it; whether it ``ships`` with the package."""
    if not text.strip():
        raise InputError(f"{source}: the file is empty; it must hold a mapping: write one, such as 'name: my run'")
    marks: dict[KeyPath, Mark] = {}
    with collector_off():  # 5 instead of 2 s of 1 MB
        data = _build(compose(text, source, ships=ships), source, (), marks)
    if data is None:
        raise InputError(f"{source}: the file holds only comments; a mapping such as 'name: my run' is expected")
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else f"the single value {shown(data)}"
        use = with_a_colon(data) if isinstance(data, str) else ""
        use = use or ("" if source.endswith((".yaml", ".yml")) else used_for(source))
        raise InputError(
            f"{source}: the file holds {kind}; a mapping such as 'name: my run' is expected at the top{use}"
        )
    return Document(data=data, source=source, folder=Path(folder), marks=marks)


def read_json(path: str | Path) -> dict[str, Any]:
    """The object in a JSON file; InputError for anything else."""
    path = Path(path)
    data = parse_json(_read_text(path), str(path), object_pairs_hook=unique_keys)
    if not isinstance(data, dict):
        raise InputError(f"{path}: holds {shown(data)}; a JSON object {{...}} is expected")
    return data


def parse_json(text: str, source: str, **hooks: Any) -> Any:
    """What a JSON text holds; InputError with its place, also for what one of ``json``'s hooks raises."""
    try:
        return json.loads(text, **hooks)
    except InputError as problem:
        raise InputError(f"{source}: {problem}") from None
    except json.JSONDecodeError as problem:
        raise InputError(f"{source}:{problem.lineno}:{problem.colno}: not valid JSON: {of_json(problem.msg)}") from None
    except (RecursionError, ValueError):  # ValueError: an integer of thousands of digits
        raise InputError(f"{source}: not usable JSON: nested too deeply, or a number of thousands of digits") from None


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a JSON file (``object_pairs_hook``); InputError for a key that appears twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InputError(f"the key {shown(key)} appears twice; keep one")
        found[key] = value
    return found


def parse_value(text: str, source: str) -> Any:
    """One value written as in a YAML file."""
    return _build(compose(text, source), source, (), {})


@cache
def _standard_input() -> bytes:
    """What is there, of which no more than can be used; read once, since a command asks for its scenario again."""
    return sys.stdin.buffer.read(_MAX_BYTES + 1)


def _read_text(path: Path) -> str:
    try:
        if str(path) == STDIN:
            raw = _standard_input()
        else:
            with path.open("rb") as file:
                raw = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file{why_missing(path)}") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder; name a YAML file in it{files_in(path)}") from None
    except (OSError, ValueError) as problem:  # ValueError: a NUL character in the path
        raise unreadable(path, problem) from None
    if len(raw) > _MAX_BYTES:
        raise InputError(f"{path}: is larger than {_MAX_BYTES:,} bytes; scenario and topology files are small texts")
    if b"\0" in raw:
        what, works = kind_by_bytes(raw)
        raise InputError(f"{path}: is {what}; a YAML text is expected: {works}")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise InputError(f"{path}: byte {problem.start} is not UTF-8; save the file as UTF-8 text") from None


# --- YAML to plain data ---------------------------------------------------------------------------------------------


def _build(node: Node | None, source: str, path: KeyPath, marks: dict[KeyPath, Mark]) -> Any:
    """Plain Python data of a YAML node; notes in ``marks`` where every key and item is written."""
    if node is None:
        return None
    place = place_of(source, node.start_mark)
    if len(path) > MAX_DEPTH:
        raise too_deep(place)
    if node.anchor:
        raise InputError(
            f"{place}: anchors and aliases (&{str(node.anchor)[:40]}) are not supported; write the value out"
        )
    tag = str(node.tag).removeprefix(_TAG)
    if tag == "map" and isinstance(node.value, list):
        return _build_mapping(node.value, source, path, marks)
    if tag == "seq" and isinstance(node.value, list):
        items = []
        for index, item in enumerate(node.value):
            marks[*path, index] = Mark(place_of(source, item.start_mark), (*path, index))
            items.append(_build(item, source, (*path, index), marks))
        return items
    return _scalar(tag, node, place)


def _build_mapping(
    pairs: Sequence[tuple[Node, Node]], source: str, path: KeyPath, marks: dict[KeyPath, Mark]
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key_node, value_node in pairs:
        place = place_of(source, key_node.start_mark)
        key = key_node.value
        if not isinstance(key, str) or str(key_node.tag) == _TAG + "merge":
            raise InputError(f"{place}: keys are plain words; lists, mappings and '<<' cannot be keys")
        if key in result:
            raise InputError(
                f"{place}: {dotted((*path, key))}: this key is already at {marks[*path, key].place}, and a key "
                f"stands once; keep one"
            )
        marks[*path, key] = Mark(place, (*path, key))
        result[key] = _build(value_node, source, (*path, key), marks)
    return result


def _scalar(tag: str, node: Node, place: str) -> Any:
    text = str(node.value)
    plain = text.replace("_", "").lower()
    try:
        if tag == "int":
            return int(plain, 0 if plain.lstrip("+-")[:2] in ("0x", "0o", "0b") else 10)
        if tag == "float":
            return float(plain.replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:  # thousands of digits
        raise InputError(
            f"{place}: {shown(text)} is not a usable number; write one of fewer digits, as in 1e9"
        ) from None
    if tag == "null":
        return None
    if tag == "bool":
        return plain == "true"
    if tag in ("str", "timestamp"):  # no document of ours holds dates: 2020-01-01 is a name
        return text
    raise InputError(f"{place}: YAML tags (!{tag[:60]}) are not supported; write the plain value")


# --- documents against models ---------------------------------------------------------------------------------------


class DocumentKinds(Generic[M]):
    """The annotation of documents of several kinds, with the adapter of pydantic's that checks by it.

    The adapter alone does not say by what, and complaints name the keys that are known.
    """

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        self.adapter: TypeAdapter[M] = TypeAdapter(annotation)


def validate(target: type[M] | DocumentKinds[M], document: Document) -> M:
    """The document as a model, or as one of several kinds; InputError listing up to 5 problems."""
    kinds = target if isinstance(target, DocumentKinds) else DocumentKinds[M](target)
    with checking(document, kinds.annotation):
        return kinds.adapter.validate_python(document.data)


@contextmanager
def checking(document: Document, annotation: Any) -> Iterator[None]:
    """Tells what pydantic finds wrong with the document of its keys and lines; InputError listing up to 5 problems."""
    try:
        yield
        return
    except ValidationError as error:
        found = complaints(error, annotation, document.data)
    except RuleError as problems:
        found = list(problems.complaints)
    raise InputError(_report(found, document)) from None


def _report(found: list[Complaint], document: Document) -> str:
    lines = [str(document.error(path, what)) for path, what in found]
    if len(lines) == 1:
        return lines[0]
    hidden = f"\n  and {len(lines) - _MAX_PROBLEMS} more" if len(lines) > _MAX_PROBLEMS else ""
    return f"{document.source}: {len(lines)} problems\n  " + "\n  ".join(lines[:_MAX_PROBLEMS]) + hidden
