"""One constant somewhere inside a frozen model, by its dotted path: read, and replaced in a copy.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import did_you_mean, listed


def value_at(model: Any, path: str) -> Any:
    """What stands at ``path`` ("matmul.power"); InputError, with what there is, for a path that is none."""
    current = model
    for place, part in enumerate(path.split(".")):
        known = _parts(current)
        if part not in known:
            above = ".".join(path.split(".")[:place])
            where = f" in {above}" if above else ""
            what = f"{did_you_mean(part, known)}; there are {listed(known)}" if known else "; it is a single value"
            raise InputError(f"there is no {path}: no {part!r}{where}{what}")
        current = current[part] if isinstance(current, Mapping) else getattr(current, part)
    return current


def changed(model: Any, path: str, value: Any) -> Any:
    """A copy of the model with another value at ``path``.  The value is not checked; the path is."""
    value_at(model, path)
    return _changed(model, path.split("."), value)


def _changed(model: Any, parts: list[str], value: Any) -> Any:
    if not parts:
        return value
    head, *rest = parts
    if isinstance(model, Mapping):
        return {**model, head: _changed(model[head], rest, value)}
    return model.model_copy(update={head: _changed(getattr(model, head), rest, value)})


def _parts(model: Any) -> list[str]:
    if isinstance(model, Mapping):
        return [str(key) for key in model]
    return list(type(model).model_fields) if isinstance(model, BaseModel) else []
