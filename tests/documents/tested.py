"""Whether what draws and prints the documents is as new as what they were made with.

matplotlib before 3.11 has other ticks, and pandas before 3 sorts the keys of nested dicts: with the oldest versions
that are allowed (``OLDEST=1 .ci/run``) pictures and tables of the documents differ by that, and are not compared.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest

_LIST = Path(__file__).parents[2] / ".ci" / "tested.txt"


def _parts(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", text)[:2]]


def older() -> list[str]:
    """Which of them are older than those that the tests are known to pass with."""
    tested = dict(line.split("==") for line in _LIST.read_text(encoding="utf-8").splitlines() if "==" in line)
    return [name for name in ("matplotlib", "pandas") if _parts(version(name)) < _parts(tested[name])]


made_here = pytest.mark.skipif(bool(older()), reason=f"documents are made with newer versions of {', '.join(older())}")
