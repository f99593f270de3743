"""Importing this first makes the package run as plain Python, as on a machine without a C compiler."""

from __future__ import annotations

import sys
from importlib.machinery import FileFinder, SourceFileLoader
from pathlib import Path

_PACKAGE = str(Path(__file__).parents[1] / "simcluster")
_find = FileFinder.path_hook((SourceFileLoader, [".py"]))


def _hook(path: str) -> FileFinder:
    if not path.startswith(_PACKAGE):
        raise ImportError(path)
    return _find(path)


sys.path_hooks.insert(0, _hook)
