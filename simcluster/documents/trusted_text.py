"""Marking of text that the user typed as trusted: only such text may name Python code to run.

A scenario, a study or a table from others is data that is safe to read; FILE.py:FUNCTION in it is code. So text of the
command line, and changes that a caller passes from Python, are marked as ``TrustedText`` where they enter, text of
files is not, and ``scenario.schedule_files.load_schedule_function`` checks the mark before it runs anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

ALLOW_PYTHON_VARIABLE = "SIMCLUSTER_ALLOW_PYTHON"
"""Environment variable: if it is 1, files may name code, also in child processes."""
_FUNCTION = ".py:"


class TrustedText(str):
    """A text FILE.py:FUNCTION that the user typed, so that simcluster may run the function.

    Copies by ``str`` or JSON are not trusted.
    """

    __slots__ = ()


def is_function_reference(text: object) -> bool:
    """Return whether a value is a text such as FILE.py:FUNCTION."""
    return isinstance(text, str) and _FUNCTION in text


def mark_trusted_text(value: Any) -> Any:
    """Return a copy of a value in which each text FILE.py:FUNCTION is marked as typed by the user."""
    if isinstance(value, str):
        return TrustedText(value) if is_function_reference(value) else value
    if isinstance(value, Mapping):
        return {key: mark_trusted_text(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(mark_trusted_text(item) for item in value)
    return value


def is_python_allowed() -> bool:
    """Return whether the user has allowed files to name Python code to run."""
    return os.environ.get(ALLOW_PYTHON_VARIABLE) == "1"


@contextmanager
def allow_python_code(allowed: bool) -> Iterator[None]:
    """If ``allowed``, let files name Python code to run inside the ``with`` block, also in child processes."""
    before = os.environ.get(ALLOW_PYTHON_VARIABLE)
    if allowed:
        os.environ[ALLOW_PYTHON_VARIABLE] = "1"
    try:
        yield
    finally:
        if allowed and before is None:
            del os.environ[ALLOW_PYTHON_VARIABLE]
        elif allowed and before is not None:
            os.environ[ALLOW_PYTHON_VARIABLE] = before
