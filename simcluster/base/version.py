"""Version of simcluster, and a digest of its source files."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

VERSION = "0.2.0"

_NUMERIC = ("networkx", "numpy", "scipy", "simpy")
_SUFFIXES = (".py", ".yaml", ".csv")


@lru_cache(maxsize=1)
def sources_digest() -> str:
    """Return a digest of the package's sources, its data and the versions of its numeric libraries.

    Stored results are valid only for this digest.
    """
    import hashlib  # here, so that `simcluster --help` does not pay for it
    from importlib.metadata import version

    package = Path(__file__).parent.parent
    digest = hashlib.sha256(repr([(name, version(name)) for name in _NUMERIC]).encode())
    for path in sorted(path for path in package.rglob("*") if path.suffix in _SUFFIXES):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()} {len(text)}\n".encode() + text)
    return digest.hexdigest()
