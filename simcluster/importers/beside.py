"""Files that lie with one that is imported, which goes on in them: read by whoever knows the folder."""

from __future__ import annotations

from collections.abc import Callable

Beside = Callable[[str], str | None]
"""The text of a file by its path from a folder around the one that is read; None where none is there."""


def nothing_beside(name: str) -> str | None:
    """A place where no other file lies."""
    return None
