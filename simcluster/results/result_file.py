"""Result files, which ``simcluster run --json FILE`` writes, and DataFrames of results.

Every column of a table has the name of the result JSON, and older names of columns are still understood.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcluster.base.errors import InputError
from simcluster.base.units import is_number
from simcluster.documents.diagnostics import quote_value
from simcluster.documents.input_files import decode_utf8, read_input_bytes
from simcluster.documents.yaml_syntax import explain_json_error
from simcluster.results.rank_time import BREAKDOWN
from simcluster.results.result import VERSION
from simcluster.results.step_account import StepAccount

if TYPE_CHECKING:
    import pandas as pd

OLDER_NAMES: Mapping[str, str] = {
    **{name: f"breakdown_s.{name}" for name in BREAKDOWN},
    "memory": "peak_memory_bytes", "real_mfu": "mfu_without_padding",
}  # fmt: skip
"""Older names of columns, each with its key in the result JSON."""


def result_table(rows: Iterable[Mapping[str, Any]], index: pd.Index | None = None) -> pd.DataFrame:
    """Return rows as a DataFrame whose columns can also be accessed by their older names."""
    table: pd.DataFrame = _table_type()(list(rows), index=index)
    return table


@cache
def _table_type() -> Any:
    import pandas as pd

    class ResultTable(pd.DataFrame):
        """A DataFrame whose columns can also be accessed by their older names."""

        @property
        def _constructor(self) -> type:
            return ResultTable

        def __getitem__(self, key: Any) -> Any:
            if isinstance(key, str) and key not in self.columns and OLDER_NAMES.get(key) in self.columns:
                return super().__getitem__(OLDER_NAMES[key]).rename(key)
            if isinstance(key, list) and any(each in OLDER_NAMES for each in key if isinstance(each, str)):
                known = [each if each in self.columns else OLDER_NAMES.get(each, each) for each in key]
                return super().__getitem__(known).set_axis(key, axis=1)
            return super().__getitem__(key)

        def __getattr__(self, name: str) -> Any:  # type: ignore[misc]
            if OLDER_NAMES.get(name) in self.columns:
                return self[name]
            return super().__getattr__(name)

    ResultTable.__qualname__ = "ResultTable"  # as pickle finds it
    return ResultTable


def __getattr__(name: str) -> Any:
    if name == "ResultTable":
        return _table_type()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def merge_assumptions(named: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """Merge the assumptions of several runs; an assumption of only some runs begins with their names."""
    whose: dict[str, list[str]] = {}
    for name, assumed in named.items():
        for words in assumed:
            whose.setdefault(words, []).append(name)
    return tuple(
        words if len(names) == len(named) else f"{', '.join(names)}: {words}" for words, names in whose.items()
    )


def assumption_lines(assumed: Iterable[str]) -> list[str]:
    """Return one output line per assumption."""
    return [f"assumed: {words}" for words in assumed]


_MOST = 1e100


@dataclass(frozen=True)
class SavedResult:
    """Content of a result file: scenario name, step time by cause, scenario document, and all JSON values."""

    name: str
    account: StepAccount
    document: Mapping[str, Any]
    values: Mapping[str, Any]


def is_result_file(path: str | Path) -> bool:
    """Return whether a file is a result (suffix .json) rather than a scenario (YAML)."""
    return Path(path).suffix == ".json"


def read_result(path: str | Path) -> SavedResult:
    """Read a result file; raise InputError if it is damaged, not a result, or from another version."""
    text = decode_utf8(read_input_bytes(path), str(path))
    try:
        values = json.loads(text, parse_constant=_parse_number, parse_float=_parse_number)
    except json.JSONDecodeError as problem:
        raise InputError(
            f"{path}:{problem.lineno}:{problem.colno}: not JSON ({explain_json_error(problem.msg)}); is the file "
            f"truncated? write it again with simcluster run SCENARIO --json {Path(path).name}"
        ) from None
    except InputError as problem:
        raise InputError(f"{path}: {problem}") from None
    except (RecursionError, ValueError):  # ValueError: an integer of thousands of digits
        raise InputError(f"{path}: not a result: nested too deeply, or a number is too long; use run --json") from None
    if not isinstance(values, dict) or "step_time_s" not in values:
        raise InputError(
            f"{path}: not a result: it has no step_time_s; save one with simcluster run SCENARIO --json FILE"
        )
    if values.get("version") != VERSION:
        written = quote_value(values.get("version", "(no version)")).strip("'")
        raise InputError(
            f"{path}: the result was written by simcluster {written}, but this is simcluster {VERSION}; results of "
            "different versions are not comparable: run the scenario again"
        )
    try:
        account = StepAccount.from_result(values)
        document = values["scenario"]
        name = str(document["name"])
        for part, size in dict(values.get("memory_bytes") or {}).items():
            if not is_number(size):
                raise ValueError(f"memory_bytes.{part}, {quote_value(size)}, which is not a number")
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise InputError(
            f"{path}: the result is incomplete (missing or misspelled: {problem}); run its scenario again"
        ) from None
    return SavedResult(name, account, document, values)


def _parse_number(text: str) -> float:
    value = float(text)
    if not abs(value) < _MOST:
        raise InputError(f"{text[:40]} is not a valid number in a result; write it again with simcluster run --json")
    return value
