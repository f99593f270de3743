"""User-defined devices, in a file or inline in a topology.

A device file holds the fields of a ``Device``, whole or over another one (``base``: a built-in name, or a path relative
to the file); ``simcluster calibrate`` writes such files. It may be named wherever a device is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.catalogue.devices import load_device_entry, merge_mappings
from simcluster.documents.yaml_documents import Document, read_document

_ENDINGS = (".yaml", ".yml")


def is_device_file(name: object) -> bool:
    """Return whether ``name`` is a file (it has a slash or ends in .yaml) instead of a built-in device."""
    return isinstance(name, str) and ("/" in name or "\\" in name or name.endswith(_ENDINGS))


def depends_on_device_file(device: object) -> bool:
    """Return whether a device's description, or its ``base``, is a file."""
    return is_device_file(device.get("base") if isinstance(device, Mapping) else device)


def read_device_description(
    device: str | Mapping[str, Any], folder: Path = Path(), parents: tuple[Path, ...] = ()
) -> Document:
    """Return a device's description with the fields of its ``base`` filled in, not yet validated.

    Paths are relative to ``folder``. Raises InputError for a file that cannot be read, for an unknown base, and for
    files whose bases form a circle.
    """
    if isinstance(device, str):
        path = folder / device
        if path.resolve() in parents:
            raise InputError(
                f"{path}: the chain of 'base' files is circular; set 'base' to a built-in device in one of them"
            )
        parents = (*parents, path.resolve())
        document, name = read_document(path), path.stem
    else:
        document, name = Document(data=dict(device), source="device", folder=folder), "inline"
    fields = dict(document.data)
    base = fields.pop("base", None)
    if is_device_file(base):
        below = read_device_description(str(base), document.folder, parents).data
    elif base is not None:
        try:
            below = load_device_entry(base)
        except InputError as error:
            raise (document.error_at(("base",), str(error)) if isinstance(device, str) else error) from None
    else:
        below = {"name": name}
    if isinstance(device, str):
        below["name"] = name
    return replace(document, data=merge_mappings(below, fields))
