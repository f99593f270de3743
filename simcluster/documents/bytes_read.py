"""Files of other tools, read with limits."""

from __future__ import annotations

from pathlib import Path

from simcluster.base.errors import InputError
from simcluster.documents.given_files import kind_by_bytes, unreadable, why_missing

MAX_BYTES = 16_000_000
"""A dump of a 72-GPU NVLink domain is under 100 kB, the ibnetdiscover listing of 10,000 ports about 2 MB."""


def read_bytes(path: str | Path) -> bytes:
    """What a file holds; InputError for one that cannot be read, is empty, or is larger than ``MAX_BYTES``."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file{why_missing(path, path.suffix or '.yaml')}") from None
    except (OSError, ValueError) as problem:  # ValueError: a NUL character in the path
        raise unreadable(path, problem) from None
    if len(raw) > MAX_BYTES:
        raise InputError(f"{path}: is larger than {MAX_BYTES:,} bytes; descriptions of clusters are smaller")
    if not raw.strip():
        raise InputError(f"{path}: the file is empty; write it, or name another")
    return raw


def decode(raw: bytes, source: str) -> str:
    """The text of a file; InputError, with the line, where it is not text in UTF-8."""
    if b"\0" in raw:
        what, works = kind_by_bytes(raw)
        raise InputError(f"{source}: is {what}; a text is expected: {works}")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = raw[: problem.start].count(b"\n") + 1
        raise InputError(
            f"{source}:{line}: byte {problem.start} of the file is not UTF-8; save it as UTF-8 text"
        ) from None
