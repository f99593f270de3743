"""What readers of YAML, JSON, TOML and XML complain of, in words of ours: what is wrong there, and what would work.

Each reader says what its grammar expected; whoever wrote the file needs to know what to write.
"""

from __future__ import annotations

import tomllib
from pathlib import Path


def of_yaml(told: str) -> str:
    """What the YAML reader's complaint means, and what to write instead."""
    return _meaning("yaml", told)


def of_json(told: str) -> str:
    """The same of a complaint of Python's JSON reader."""
    return _meaning("json", told)


def of_toml(told: str) -> str:
    """The same of Python's TOML reader."""
    return _meaning("toml", told)


def of_xml(told: str) -> str:
    """The same of expat's."""
    return _meaning("xml", told)


def _meaning(reader: str, told: str) -> str:
    known = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))[reader]
    return str(next((meaning for part, meaning in known.items() if part in told), known["otherwise"]))
