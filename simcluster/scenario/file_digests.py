"""Digests of the files that documents name, and cache keys of simulation results, which include the digests.

Stored results must not outlive an edited file. There is no list of the keys that may name a file: every text in a
document that leads to one counts. A file whose name occurs by chance counts, too; the only cost is a repeated
simulation.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from simcluster.base.errors import InputError
from simcluster.base.version import sources_digest
from simcluster.documents.builtin_documents import builtin_folder
from simcluster.documents.trusted_text import is_function_reference
from simcluster.documents.yaml_documents import read_document
from simcluster.scenario.scenario import BaseScenario, ScenarioVariant, find_scenario_file

_SHIPPED = ("topologies", "scenarios")
_NAMING = ("", ".yaml", ".yml")  # endings of files that may name others; Python files do so by what they import
_UNREADABLE = "unreadable"

_Stamp = tuple[int, int, int] | None


class FileDigests:
    """Digests of all files that documents name; the object reads each file only once."""

    def __init__(self) -> None:
        self._digests: dict[Path, str] = {}
        self._below: dict[Path, list[Path]] = {}
        self._stamps: dict[Path, _Stamp] = {}
        self._texts: dict[tuple[str, Path], list[Path]] = {}

    def digest(self, value: object, folder: Path = Path()) -> str:
        """Return a digest of all files named in a document, directly or by other files; "" if it names none."""
        found = self._follow_names(list(self._find_named_files(value, folder)))
        return hashlib.sha256("".join(map(self._file_digest, found)).encode()).hexdigest() if found else ""

    @property
    def changed_files(self) -> list[Path]:
        """Paths of the files that have changed since their digest was computed."""
        return [path for path, stamp in self._stamps.items() if _file_stamp(path) != stamp]

    def require_unchanged(self) -> None:
        """Raise InputError if a file has changed since its digest was computed."""
        if changed := self.changed_files:
            raise InputError(
                f"{changed[0]}: changed during the run, so some rows may be of its old contents; run the same command "
                "again (finished rows are stored)"
            )

    def _follow_names(self, paths: list[Path]) -> list[Path]:
        seen = dict.fromkeys(paths)
        while paths:
            path = paths.pop()
            if path not in self._below:
                self._below[path] = list(self._find_files_named_in(path))
            paths += [each for each in self._below[path] if each not in seen]
            seen.update(dict.fromkeys(self._below[path]))
        return list(seen)

    def _file_digest(self, path: Path) -> str:
        if path not in self._digests:
            self._stamps[path] = _file_stamp(path)
            try:
                with path.open("rb") as file:
                    self._digests[path] = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError:
                self._digests[path] = _UNREADABLE
        return self._digests[path]

    def _find_named_files(self, value: object, folder: Path) -> Iterator[Path]:
        if isinstance(value, Mapping):
            for inner in value.values():
                yield from self._find_named_files(inner, folder)
        elif isinstance(value, list | tuple):
            for inner in value:
                yield from self._find_named_files(inner, folder)
        elif isinstance(value, str | Path):
            key = str(value), folder
            if key not in self._texts:
                self._texts[key] = list(_existing_files(*key))
            yield from self._texts[key]

    def _find_files_named_in(self, path: Path) -> Iterator[Path]:
        if path.suffix == ".py":
            yield from _imported_files(path)
        elif path.suffix in _NAMING and path.parent not in map(builtin_folder, _SHIPPED):
            try:
                yield from self._find_named_files(read_document(path).data, path.parent)
            except InputError:
                return  # whoever reads it says what is wrong


class VariantCacheKeys:
    """Cache keys of simulation results, for the variants of one base scenario.

    Keys are equal if the simulator's sources, the base, the changes, the contents of all files that these name, and
    ``what`` is computed of a variant are equal.
    """

    def __init__(self, base: BaseScenario, *what: str, contents: FileDigests | None = None) -> None:
        self.contents = contents or FileDigests()
        self._folder = Path(base.folder)
        named = self.contents.digest([_base_document(base), base.fixed_changes], _base_folder(base))
        self._base = _hash_json([sources_digest(), base.digest(), named, *what])
        self._named: dict[str, str] = {}  # digests by change, which many variants have

    def cache_key(self, variant: ScenarioVariant) -> str:
        """Return the cache key of a variant of the base scenario."""
        return self.cache_key_of_changes(*variant.changes)

    def cache_key_of_changes(self, *changes: object) -> str:
        """Return the cache key of the base scenario with these changes, each a pair (dotted path, value)."""
        return _hash_json([self._base, changes, [self._change_digest(each) for each in changes]])

    def _change_digest(self, change: object) -> str:
        name = repr(change)
        if name not in self._named:
            self._named[name] = self.contents.digest(change, self._folder)
        return self._named[name]


def _hash_json(what: object) -> str:
    return hashlib.sha256(json.dumps(what, default=str).encode()).hexdigest()


def _base_document(base: BaseScenario) -> object:
    if not isinstance(base.source, str):
        return base.source
    try:
        return read_document(find_scenario_file(base.source)).data
    except InputError:
        return base.source


def _base_folder(base: BaseScenario) -> Path:
    return find_scenario_file(base.source).parent if isinstance(base.source, str) else Path(base.folder)


def _existing_files(text: str, folder: Path) -> Iterator[Path]:
    names = [text, text.rpartition(":")[0]] if is_function_reference(text) else [text]
    paths = [place / name for place in dict.fromkeys((folder, Path())) for name in names if name]
    if not {"/", "\\"} & set(text):
        paths += [builtin_folder(kind) / f"{text}.yaml" for kind in _SHIPPED]
    yield from (path for path in paths if os.path.isfile(path))  # noqa: PTH113  # Path's raises for long texts


def _imported_files(path: Path) -> Iterator[Path]:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return  # whoever runs it says what is wrong
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    others = dict.fromkeys(name for name in names if name.partition(".")[0] != "simcluster")  # it has its own digest
    for name in others:
        for place in dict.fromkeys((path.parent, Path())):
            module = place.joinpath(*name.split("."))
            yield from (each for each in (module.with_suffix(".py"), module / "__init__.py") if each.is_file())


def _file_stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
