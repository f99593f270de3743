"""Taint marking of trusted text: only text that the user typed may name Python code to run.

A scenario, a study or a table from others is data that is safe to read; FILE.py:FUNCTION in it is code. So text of the
command line, and changes that a caller passes from Python, are marked as ``TrustedText`` where they enter, text of
files is not, and ``scenario.schedule_files.load_schedule_function`` checks the mark before it runs anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

VARIABLE = "SIMCLUSTER_ALLOW_PYTHON"
"""Environment variable: if it is 1, files may name code, also in child processes."""
_FUNCTION = ".py:"


class TrustedText(str):
    """Text FILE.py:FUNCTION that the user typed, so that its Python code may be run.

    Copies by ``str`` or JSON are not trusted.
    """

    __slots__ = ()


def names_function(text: object) -> bool:
    """Return whether a value is text of the form FILE.py:FUNCTION."""
    return isinstance(text, str) and _FUNCTION in text


def trust_text(value: Any) -> Any:
    """Return a value in which every text FILE.py:FUNCTION is marked as typed by the user."""
    if isinstance(value, str):
        return TrustedText(value) if names_function(value) else value
    if isinstance(value, Mapping):
        return {key: trust_text(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(trust_text(item) for item in value)
    return value


def is_python_allowed() -> bool:
    """Return whether the user has allowed files to name Python code to run."""
    return os.environ.get(VARIABLE) == "1"


@contextmanager
def allow_python_code(allowed: bool) -> Iterator[None]:
    """Allow files to name Python code inside the block, in this process and its children, if ``allowed``."""
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
