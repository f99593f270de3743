"""A run in numbers as what can be sent to another process, and as a digest of all that is played of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
from pydantic import BaseModel

from simcluster.base.arrays import Ints
from simcluster.longrun.run import FailureMode, LongRun


@dataclass(frozen=True)
class ClassOfDevice:
    """The class of every device of a cause, as a table."""

    table: Ints

    def __call__(self, devices: Ints) -> Ints:
        """Of these."""
        return np.asarray(self.table[devices], dtype=np.int64)


def sendable(run: LongRun) -> LongRun:
    """The same run to all who play it but for names of devices, which only a log has: plain data throughout."""
    return replace(run, causes=tuple(_plain(cause) for cause in run.causes))


def _plain(cause: FailureMode) -> FailureMode:
    if cause.column is None or cause.paces is None:  # nobody asks
        return replace(cause, label=str, column=None)
    table = cause.column(np.arange(cause.devices)).astype(np.min_scalar_type(cause.paces.shape[1]))
    return replace(cause, label=str, column=ClassOfDevice(table))


def digest_of(run: LongRun) -> str:
    """Equal for runs that are played alike; another one if any number or law of theirs differs."""
    text = json.dumps(_told(sendable(run)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _told(value: Any) -> Any:
    """Whatever a run is made of, as JSON."""
    if value is None or value is str or isinstance(value, str | int | float):
        return repr(value)
    if isinstance(value, np.ndarray):
        return [str(value.dtype), list(value.shape), hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]
    if isinstance(value, tuple | list):
        return [_told(each) for each in value]
    if isinstance(value, Mapping):
        return {repr(key): _told(each) for key, each in value.items()}
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, BaseModel):
        return [kind, {name: _told(getattr(value, name)) for name in type(value).model_fields}]
    if is_dataclass(value):
        return [kind, {field.name: _told(getattr(value, field.name)) for field in fields(value)}]
    raise TypeError(f"{kind} in a run has no content that can be told")
