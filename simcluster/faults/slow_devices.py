"""Base class of faults that slow a device down, and reading of ``slowdown`` and ``speed`` values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from simcluster.base.counts import float_or_nan
from simcluster.base.units import is_number
from simcluster.documents.base_spec import NUMBER_OR_TEXT
from simcluster.documents.diagnostics import RuleError, quote_value
from simcluster.faults.fault_spec import FaultSpec

PACE_KEYS = ("slowdown", "speed", "factor")
"""Keys of the slowness, of which a fault has one."""

Slowdown = Annotated[float, Field(ge=1, le=1e6), NUMBER_OR_TEXT]
Speed = Annotated[float, Field(gt=0, le=1), NUMBER_OR_TEXT]


class SlowDeviceFault(FaultSpec):
    """Base class of faults that slow a device down, given as ``slowdown`` or as remaining ``speed``.

    Documents of earlier versions have ``factor``, which a kind reads as its ``FACTOR``. RuleError without any of the
    three, with several, and for a value out of range.
    """

    FACTOR: ClassVar[str]
    """Key with which saved scenarios give the fault's strength: "slowdown" or "speed"."""

    slowdown: Slowdown | None = None
    """Slowdown of the device: a factor, as in 1.2, or the additional time, as in "20 %"."""
    speed: Speed | None = None
    """Remaining speed of the device, as in 0.8 or "80 %"."""

    @model_validator(mode="before")
    @classmethod
    def _read_slowdown_or_speed(cls, document: Any) -> Any:
        if not isinstance(document, Mapping):
            return document
        given = [name for name in PACE_KEYS if document.get(name) is not None]
        if len(given) != 1:
            what = f"{' and '.join(given)} are both set; keep" if given else "slowdown and speed are missing; set"
            raise RuleError([(tuple(given[1:2]), f"{what} one of slowdown: 1.2 (takes 1.2 times as long) or "
                                                 f"speed: 80 % (of its full speed)")])  # fmt: skip
        name = given[0]
        value = cls._check_old_factor(document[name]) if name == "factor" else _READERS[name](document[name])
        factor = value if name in ("factor", cls.FACTOR) else 1.0 / value
        return {**{key: each for key, each in document.items() if key not in PACE_KEYS}, "factor": factor}

    @model_serializer(mode="wrap")
    def _write_slowdown_or_speed(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = {name: value for name, value in write(self).items() if name not in _READERS}
        return {self.FACTOR if name == "factor" else name: value for name, value in fields.items()}

    @classmethod
    def _check_old_factor(cls, value: Any) -> Any:
        if isinstance(value, str):
            senses = "slowdown: 20 % (takes 1.2 times as long) or speed: 20 % (a fifth)"
            what = f"must be a number, got {value!r}; a percentage is ambiguous here: write {senses}"
            raise RuleError([(("factor",), what)])
        if not is_number(value):
            return value
        if cls.FACTOR == "slowdown" and value < 1:
            other = f"; for {value:g} of the full speed, write speed: {value:g}" if value > 0 else ""
            rule = "must be at least 1: the factor by which the device takes longer, 2 for twice as long"
        elif cls.FACTOR == "speed" and not 0 < value <= 1:
            other = f"; if it takes {value:g} times as long, write slowdown: {value:g}" if value > 1 else ""
            rule = "must be greater than 0 and at most 1: the remaining share of the bandwidth, 0.5 for half"
        else:
            return value
        raise RuleError([(("factor",), f"{rule}; got {value:g}{other}")])


def _read_slowdown(value: Any) -> float:
    number = 1 + _read_percent(value) if isinstance(value, str) else value
    if not is_number(number) or not 1 <= number <= 1e6:
        less = is_number(number) and 0 < number < 1
        near = f"; for {number:g} of the full speed, write speed: {number:g}" if less else ""
        raise RuleError([(("slowdown",), "must be a factor of at least 1, as in 1.2 (takes 1.2 times as long), or "
                                         f'the extra time, as in "20 %"; got {quote_value(value)}{near}')])  # fmt: skip
    return float(number)


def _read_speed(value: Any) -> float:
    number = _read_percent(value) if isinstance(value, str) else value
    if not is_number(number) or not 0 < number <= 1:
        more = is_number(number) and number > 1
        near = f"; if it takes {number:g} times as long, write slowdown: {number:g}" if more else ""
        raise RuleError([(("speed",), "must be the remaining share of full speed, above 0 and at most 1, as in 0.8 or "
                                      f'"80 %"; got {quote_value(value)}{near}')])  # fmt: skip
    return float(number)


_READERS = {"slowdown": _read_slowdown, "speed": _read_speed}


def _read_percent(text: str) -> float:
    number, percent, rest = text.strip().partition("%")
    return float_or_nan(number) / 100 if percent and not rest else math.nan
