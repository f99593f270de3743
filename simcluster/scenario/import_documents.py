"""Topology documents of ``kind: import``, which name topology files of other tools.

The readers themselves are imported only where such a file is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.satellites import load_satellite_object
from simcluster.documents.diagnostics import KeyPath
from simcluster.documents.yaml_documents import Document, validate_document

ENDINGS = (".xml", ".graphml", ".json", ".txt", ".out", ".log", ".ibnetdiscover", ".topo")
"""Endings that YAML topology files never have."""


def is_importable(path: str | Path) -> bool:
    """Return whether a path is a topology file of another tool, judged by content or file extension."""
    path = Path(path)
    if not path.is_file():
        return False
    if path.suffix in (".yaml", ".yml"):
        return _is_astra_network(path)
    if path.suffix in ENDINGS:
        return True
    from simcluster.documents.input_files import read_input_bytes

    try:
        return load_satellite_object("form of a topology file")(read_input_bytes(path), str(path)) is not None
    except InputError:
        return False  # the reader of topology files says what is wrong with it


def _is_astra_network(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(1_000_000)
    except OSError:
        return False
    if b"npus_count" not in head:
        return False
    return bool(load_satellite_object("ASTRA-sim network")(head.decode("utf-8", errors="replace")))


def make_import_document(path: Path) -> Document:
    """Return a topology document of ``kind: import`` that names one file."""
    return Document(data={"kind": "import", "files": [str(path)]}, source=str(path), folder=path.parent)


def resolve_import_paths(fields: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a ``kind: import`` topology document with its file paths resolved against ``folder``."""
    files = fields.get("files")
    files = [files] if isinstance(files, str) else files
    if fields.get("kind") != "import" or not isinstance(files, list):
        return dict(fields)
    return {**fields, "files": [str(folder / file) if isinstance(file, str) else file for file in files]}


def expand_import_section(document: Document, where: KeyPath = ()) -> Document:
    """Return the document with a ``kind: import`` section replaced by the topology in the named files.

    ``where`` is the path of the section. Files do not state the network's ``routing``, which stays as written. Raises
    InputError naming file, line and, within another document, the key.
    """
    fields: Any = document.data
    for key in where:
        fields = fields[key]
    if fields.get("kind") != "import":
        return document
    depth = len(where)
    below = {path[depth:]: mark for path, mark in document.marks.items() if path[:depth] == where and path != where}
    wish = {key: value for key, value in fields.items() if key != "routing"}
    spec = validate_document(load_satellite_object("import of a topology"), replace(document, data=wish, marks=below))
    try:
        graph = load_satellite_object("topology of other tools")(spec.files, spec)
    except InputError as error:
        if where or not str(error).startswith(spec.files):
            raise document.error_at(where, str(error)) from None
        raise
    data: Any = {**graph, **{key: fields[key] for key in ("routing",) if key in fields}}
    for position in range(depth - 1, -1, -1):
        parent: Any = document.data
        for key in where[:position]:
            parent = parent[key]
        data = {**parent, where[position]: data}
    kept = (where, (*where, "routing"))
    marks = {path: mark for path, mark in document.marks.items() if path[:depth] != where or path[: depth + 1] in kept}
    return replace(document, data=data, marks=marks)
