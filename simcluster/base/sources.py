"""The simulator's own version, to the byte: what numbers that are kept must not outlive."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

_NUMERIC = ("networkx", "numpy", "scipy", "simpy")
_SUFFIXES = (".py", ".yaml", ".csv")


@lru_cache(maxsize=1)
def sources_digest() -> str:
    """Of all Python sources and data (.yaml, .csv) of the package, with the versions of the libraries that draw,
    route, play and compute."""
    package = Path(__file__).parent.parent
    digest = hashlib.sha256(repr([(name, version(name)) for name in _NUMERIC]).encode())
    for path in sorted(path for path in package.rglob("*") if path.suffix in _SUFFIXES):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()} {len(text)}\n".encode() + text)
    return digest.hexdigest()
