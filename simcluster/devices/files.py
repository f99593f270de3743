"""Devices described by the user: in a separate file, or inline in a topology.

A device file holds the fields of a ``Device``, whole or over another one (``base``: a built-in name, or a path relative
to the file); ``simcluster calibrate`` writes such files. It may be named wherever a device is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.catalogue.devices import device_document, merge_mappings
from simcluster.documents.reading import Document, read_document

_ENDINGS = (".yaml", ".yml")


def is_device_file(name: object) -> bool:
    """Return whether ``name`` is a path (has a slash or a .yaml ending), not the name of a built-in device."""
    return isinstance(name, str) and ("/" in name or "\\" in name or name.endswith(_ENDINGS))


def names_device_file(device: object) -> bool:
    """Return whether a device's description depends on a file: it is a path, or its base is one."""
    return is_device_file(device.get("base") if isinstance(device, Mapping) else device)


def read_description(device: str | Mapping[str, Any], folder: Path = Path(), above: tuple[Path, ...] = ()) -> Document:
    """Return a device file, or an inline description, with its base filled in but not yet validated.

    Paths are relative to ``folder``. Raises InputError for a file that cannot be read, for an unknown base, and for
    files whose bases form a circle.
    """
    if isinstance(device, str):
        path = folder / device
        if path.resolve() in above:
            raise InputError(
                f"{path}: base is circular, which cannot be resolved; set base to a built-in device in one file"
            )
        above = (*above, path.resolve())
        document, name = read_document(path), path.stem
    else:
        document, name = Document(data=dict(device), source="device", folder=folder), "inline"
    fields = dict(document.data)
    base = fields.pop("base", None)
    if is_device_file(base):
        below = read_description(str(base), document.folder, above).data
    elif base is not None:
        try:
            below = device_document(base)
        except InputError as error:
            raise (document.error(("base",), str(error)) if isinstance(device, str) else error) from None
    else:
        below = {"name": name}
    if isinstance(device, str):
        below["name"] = name
    return replace(document, data=merge_mappings(below, fields))
