"""What the person who runs simcluster wrote themselves: only they can name Python code that runs.

A scenario, a study or a table from somebody else is data, which may be read without a thought; FILE.py:FUNCTION in one
is code.  So text of the command line, and changes that a caller gives from Python, are marked as ``OwnWord`` where they
come in, text of files is not, and ``scenario.schedule_files.function_in`` asks before it runs anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

VARIABLE = "SIMCLUSTER_ALLOW_PYTHON"
"""Set to 1, files may name code; so do processes that this one starts."""
_FUNCTION = ".py:"


class OwnWord(str):
    """Text that names FILE.py:FUNCTION in the words of whoever runs simcluster; it may be run.

    Copies by ``str`` or JSON are text like any other.
    """

    __slots__ = ()


def names_function(text: object) -> bool:
    """Does the text mean FILE.py:FUNCTION?"""
    return isinstance(text, str) and _FUNCTION in text


def own_words(value: Any) -> Any:
    """A value as its author vouches for it: FILE.py:FUNCTION anywhere in it may be run."""
    if isinstance(value, str):
        return OwnWord(value) if names_function(value) else value
    if isinstance(value, Mapping):
        return {key: own_words(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(own_words(item) for item in value)
    return value


def python_allowed() -> bool:
    """Has whoever runs this allowed files to name code?"""
    return os.environ.get(VARIABLE) == "1"


@contextmanager
def allowing_python(allowed: bool) -> Iterator[None]:
    """Inside it files may name code, in this process and those that it starts, if that is ``allowed``."""
    before = os.environ.get(VARIABLE)
    if allowed:
        os.environ[VARIABLE] = "1"
    try:
        yield
    finally:
        if allowed and before is None:
            del os.environ[VARIABLE]
        elif allowed and before is not None:
            os.environ[VARIABLE] = before
