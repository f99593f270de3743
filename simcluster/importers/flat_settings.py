"""Settings in sections, as one mapping of dotted names to values."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.composing import of_json, of_toml
from simcluster.documents.reading import unique_keys

_MAX_CHARACTERS = 1_000_000
_YAML = re.compile(r"^[A-Za-z_][\w.-]*:([ \t]|$)", re.MULTILINE)
_TOML = re.compile(r"^\[|^[\w.-]+[ \t]*=", re.MULTILINE)
_MAX_DEPTH = 8


def flattened(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """``{"model": {"seq_length": 1}}`` as ``{"model.seq_length": 1}``; lists stay as they are."""
    found: dict[str, Any] = {}

    def walk(part: Mapping[str, Any], path: tuple[str, ...]) -> None:
        if len(path) >= _MAX_DEPTH:
            raise InputError(f"{source}: {'.'.join(path)[:60]}: is nested more than {_MAX_DEPTH} sections deep")
        for key, value in part.items():
            if isinstance(value, Mapping):
                walk(value, (*path, str(key)))
            else:
                found[".".join((*path, str(key)))] = value

    walk(data, ())
    return found


def parse_toml_or_json(text: str, source: str, expected: str = "TOML or JSON") -> dict[str, Any]:
    """Return the sections of a job's file in TOML, or in JSON where it begins with a brace."""
    if len(text) > _MAX_CHARACTERS:
        raise InputError(f"{source}: has more than {_MAX_CHARACTERS:,} characters, which no job config has")
    kind = "JSON" if text.lstrip().startswith("{") else "TOML"
    try:
        data = json.loads(text, object_pairs_hook=unique_keys, parse_constant=_no_constant) if kind == "JSON" else (
            tomllib.loads(text)
        )  # fmt: skip
    except InputError as problem:
        raise InputError(f"{source}: {problem}") from None
    except RecursionError:
        raise InputError(f"{source}: is nested too deeply for a job config") from None
    except ValueError as problem:  # of both; also an integer of thousands of digits
        told = str(problem)
        line = re.search(r"line (\d+)", told)
        meaning = of_json(told) if kind == "JSON" else of_toml(told)
        if kind == "TOML" and _YAML.search(text) and not _TOML.search(text):
            raise InputError(f"{source}: is YAML, and a file in {expected} is expected; name that one") from None
        raise InputError(f"{source}{f':{line[1]}' if line else ''}: is not {kind}: {meaning}") from None
    if not isinstance(data, dict) or not data:
        raise InputError(f"{source}: holds no settings, such as [training] with seq_len = 8192")
    return data


def _no_constant(text: str) -> Any:
    raise InputError(f"{text} is no JSON number; write a finite one")
