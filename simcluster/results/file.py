"""Results that were saved with ``simcluster run --json FILE``, read back and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.units import is_number
from simcluster.documents.composing import of_json
from simcluster.documents.diagnostics import shown
from simcluster.documents.given_files import decode, read_bytes
from simcluster.results.account import Account
from simcluster.results.result import VERSION

_MOST = 1e100


@dataclass(frozen=True)
class Saved:
    """A result without its timeline: ``values`` is the result JSON, ``document`` the scenario in it, as resolved."""

    name: str
    account: Account
    document: Mapping[str, Any]
    values: Mapping[str, Any]


def is_saved(path: str | Path) -> bool:
    """Is it a file in JSON, as results are?  Scenarios are in YAML."""
    return Path(path).suffix == ".json"


def read_saved(path: str | Path) -> Saved:
    """A saved result; InputError for a file that is none, is cut, or was written by another version."""
    text = decode(read_bytes(path), str(path))
    try:
        values = json.loads(text, parse_constant=_number, parse_float=_number)
    except json.JSONDecodeError as problem:
        raise InputError(
            f"{path}:{problem.lineno}:{problem.colno}: not JSON ({of_json(problem.msg)}); is the file cut? "
            f"write it again with simcluster run SCENARIO --json {Path(path).name}"
        ) from None
    except InputError as problem:
        raise InputError(f"{path}: {problem}") from None
    except (RecursionError, ValueError):  # ValueError: an integer of thousands of digits
        raise InputError(f"{path}: nested too deeply, or a number too long, to be a result") from None
    if not isinstance(values, dict) or "step_time_s" not in values:
        raise InputError(
            f"{path}: is no result: it has no step_time_s; save one with simcluster run SCENARIO --json FILE"
        )
    if values.get("version") != VERSION:
        written = shown(values.get("version", "(no version)")).strip("'")
        raise InputError(
            f"{path}: was written by simcluster {written}, this is {VERSION}; numbers of two versions differ for "
            "reasons of their own: run the scenario in it again"
        )
    try:
        account = Account.from_result(values)
        document = values["scenario"]
        name = str(document["name"])
        for part, size in dict(values.get("memory_bytes") or {}).items():
            if not is_number(size):
                raise ValueError(f"memory_bytes.{part}, {shown(size)}, which is no number")
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise InputError(
            f"{path}: the result is not whole (it lacks or misspells {problem}); run its scenario again"
        ) from None
    return Saved(name, account, document, values)


def _number(text: str) -> float:
    """No NaN, no infinity, and nothing whose sums could be one."""
    value = float(text)
    if not abs(value) < _MOST:
        raise InputError(f"has {text[:40]} as a number, which no result has; write it again with simcluster run --json")
    return value
