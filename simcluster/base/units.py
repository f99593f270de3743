"""Parsing and formatting of quantities with units: "400 Gbit/s" is 5e10 B/s.

Inside, all quantities are floats in SI units. B is bytes, b or bit is bits; k M G T P E are powers of 1000, Ki Mi Gi Ti
Pi of 1024. Bits exist only in this file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Annotated, TypeGuard

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from simcluster.base.errors import InputError
from simcluster.base.texts import short_repr

HOUR, DAY, YEAR = 3600.0, 86400.0, 365.25 * 86400.0
"""In seconds."""

_PREFIXES = {
    "": 1.0,
    "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50,
}  # fmt: skip
_SECONDS = {"s": 1.0, "min": 60.0, "h": HOUR, "d": DAY}
_SUBSECONDS = {"ms": 1e3, "us": 1e6, "µs": 1e6, "ns": 1e9, "ps": 1e12}  # divisors: 5 / 1e6 is exact, 5 * 1e-6 is not
_PARTS = {"bytes": {"bit": 0.125, "B": 1.0}, "bytes per second": {"bit/s": 0.125, "B/s": 1.0, "b/s": 0.125},
          "FLOP per second": {"FLOP/s": 1.0}}  # fmt: skip
_UNITS: dict[str, dict[str, float]] = {"seconds": _SECONDS} | {
    dimension: {
        f"{prefix}{unit}": factor * scale for unit, scale in parts.items() for prefix, factor in _PREFIXES.items()
    }
    for dimension, parts in _PARTS.items()
}
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ/]*)\s*")

_NCCL_SIZE = re.compile(r"\s*(\d+)\s*([kKmMgGtT])\s*")

_MAX_NUMBER = 1e99
"""Largest accepted number, as for counts: products of a few of them are still floats."""
_EXAMPLES = {
    "bytes": '"80 GB", "80 GiB" or "512 MiB"',
    "bytes per second": '"400 Gbit/s", "450 GB/s" or "25 GB/s"',
    "seconds": '"2 us", "13.75 s", "20 min" or "7 d"',
    "FLOP per second": '"989 TFLOP/s" or "312 TFLOP/s"',
}

_OTHER_SPELLINGS = {
    "s": ("sec", "second"), "min": ("m", "minute"), "h": ("hr", "hour"), "d": ("day",),
    "ms": ("msec", "millisecond"), "us": ("usec", "microsecond"), "ns": ("nsec", "nanosecond"),
}  # fmt: skip
"""Other spellings of units of time, also with a plural s."""


def parse_bytes(value: object) -> float:
    """Parse a size in bytes from text such as "80 GB", "1GiB" or "16 Mbit"; reject the ambiguous "80 Gb"."""
    return _parse_quantity(value, "bytes")


def parse_message_size(value: str) -> float:
    """Parse a message size in bytes as nccl-tests does: suffixes without B are binary, 1G is 2^30.

    >>> parse_message_size("1G") == parse_message_size("1 GiB")
    True
    """
    match = _NCCL_SIZE.fullmatch(value)
    return float(match[1]) * _PREFIXES[f"{match[2].upper()}i"] if match else parse_bytes(value)


def parse_bytes_per_second(value: object) -> float:
    """Parse a data rate in B/s from text such as "400 Gbit/s" or "450 GB/s"."""
    return _parse_quantity(value, "bytes per second")


def parse_flop_per_second(value: object) -> float:
    """Parse a compute rate in FLOP/s from text such as "989 TFLOP/s"."""
    return _parse_quantity(value, "FLOP per second")


def parse_seconds(value: object) -> float:
    """Parse a duration in seconds from text such as "2 us", "13.75 s" or "10 min"."""
    return _parse_quantity(value, "seconds")


def _parse_quantity(value: object, dimension: str) -> float:
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None or not match[2]:
        raise _quantity_error(value, dimension)
    number, unit = float(match[1]), match[2]
    if abs(number) > _MAX_NUMBER:
        raise InputError(f"{short_repr(value)} is too large; write at most {_MAX_NUMBER:g} {dimension}")
    if dimension == "seconds" and unit in _SUBSECONDS:
        return number / _SUBSECONDS[unit]
    if unit not in _UNITS[dimension]:
        raise _quantity_error(value, dimension)
    return number * _UNITS[dimension][unit]


def _quantity_error(value: object, dimension: str) -> InputError:
    wrong = " has no unit" if isinstance(value, int | float) and not isinstance(value, bool) else " is not a quantity"
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    suggest = _suggest_duration if dimension == "seconds" else _suggest_rate
    meant = suggest(match[1], match[2], dimension) if match else ""
    works = f"; write {meant}" if meant else ""
    return InputError(f"{short_repr(value)}{wrong}; {dimension} are written as {_EXAMPLES[dimension]}{works}")


def _suggest_duration(number: str, unit: str, _: str) -> str:
    word = unit.lower()
    one = word.removesuffix("s") if len(word) > 2 else word
    if one in ("week", "wk", "w"):
        return f"{7 * float(number):g} d"
    return next((f"{number} {known}" for known, words in _OTHER_SPELLINGS.items() if one in (*words, known)), "")


def _suggest_rate(number: str, unit: str, dimension: str) -> str:
    if dimension == "bytes" and unit.endswith("b"):
        unit = f"{unit[:-1]}B"
    per = re.sub(r"(?<=\w)(?:ps|PS|/sec|/second)$", "/s", re.sub(r"(?i:flop)(?:[sS]|ps|PS)?(?:/s)?$", "FLOP/s", unit))
    return f"{number} {per}" if per in _UNITS[dimension] else ""


def _positive_validator(parse: Callable[[object], float], *, zero: bool = False) -> BeforeValidator:

    def validate(value: object) -> float:
        number = parse(value)
        if number < 0 or (number == 0 and not zero):
            wrong = "not be negative; write 0 or more" if zero else "be greater than zero; write more than 0"
            raise InputError(f"{value!r} must {wrong}")
        return number

    return BeforeValidator(validate)


# --- for people -----------------------------------------------------------------------------------------------------


def format_seconds(seconds: float) -> str:
    """Format a duration with four digits in a suitable unit: 13.00 s, 2.000 us."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if abs(seconds) >= scale * 0.99995:
            more = abs(seconds) >= 9999.5
            return f"{seconds:,.0f} s" if more else f"{seconds / scale:#.4g} {unit}".replace(". ", " ")
    return "0 s" if seconds == 0 else f"{seconds / 1e-12:#.4g} ps".replace(". ", " ")


def format_time_change(seconds: float, minus: str = "-") -> str:
    """Format a signed change of a duration: +13.00 s, -2.000 us."""
    return f"{minus if seconds < 0 else '+'}{format_seconds(abs(seconds))}"


def format_seconds_short(seconds: float) -> str:
    """Format a duration without trailing zeros, for axis labels: 20 s, 2.5 us."""
    number, _, unit = format_seconds(seconds).partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def format_bytes(size: float) -> str:
    """Format bytes in decimal units: 80 GB, 1.074 GB, 512 B."""
    return _format_decimal(size, "B")


def format_bytes_per_second(rate: float) -> str:
    """Format a rate in decimal bytes per second: 240 GB/s."""
    return _format_decimal(rate, "B/s")


def _format_decimal(value: float, unit: str) -> str:
    for prefix in ("E", "P", "T", "G", "M", "k"):
        if abs(value) >= _PREFIXES[prefix] * 0.99995:
            return f"{value / _PREFIXES[prefix]:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


# --- in documents ---------------------------------------------------------------------------------------------------

_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi")
_READ: dict[str, tuple[Callable[[object], float], Sequence[tuple[str, float]]]] = {
    "s": (parse_seconds, [*reversed(_SECONDS.items()), *((unit, 1 / scale) for unit, scale in _SUBSECONDS.items())]),
    "B": (parse_bytes, [(f"{prefix}B", _PREFIXES[prefix]) for prefix in (*_DECIMAL, *_BINARY)]),
    "B/s": (parse_bytes_per_second, [(f"{prefix}B/s", _PREFIXES[prefix]) for prefix in _DECIMAL]),
    "FLOP/s": (parse_flop_per_second, [(f"{prefix}FLOP/s", _PREFIXES[prefix]) for prefix in _DECIMAL]),
}


@lru_cache(maxsize=4096)
def format_exact_quantity(number: float, unit: str) -> str:
    """Format a quantity so that the text parses to exactly the same number, in the most readable unit.

    >>> [format_exact_quantity(*each) for each in ((5184000.0, "s"), (450e9, "B/s"), (80 * 2.0**30, "B"))]
    ['60 d', '450 GB/s', '80 GiB']
    """
    read, units = _READ[unit]
    exact = []
    for name, scale in units if number else [(unit, 1.0)]:
        digits = f"{number / scale:.15g}"  # quotients are off by a last digit that reading makes good
        if "e" not in digits and read(f"{digits} {name}") == number:
            readable = 1 <= abs(float(digits)) < 1000
            exact.append((not readable, len(digits.replace(".", "")), len(digits), f"{digits} {name}"))
    return min(exact, key=lambda each: each[:3])[3] if exact else f"{number!r} {unit}"


def _unit_serializer(unit: str) -> PlainSerializer:
    return PlainSerializer(lambda number: format_exact_quantity(number, unit), return_type=str, when_used="json")


def _quantity_schema(dimension: str, units: str) -> WithJsonSchema:
    pattern = rf"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*{units}\s*$"
    examples = [each.strip('" ') for each in re.split(r",| or ", _EXAMPLES[dimension])]
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": examples, "x-unit": dimension})


_LETTERS = "([kKMGTPE]|[KMGTP]i)?"
Bytes = Annotated[
    float, _positive_validator(parse_bytes), _unit_serializer("B"), _quantity_schema("bytes", f"{_LETTERS}(bit|B)")
]
BytesPerSecond = Annotated[
    float, _positive_validator(parse_bytes_per_second), _unit_serializer("B/s"),
    _quantity_schema("bytes per second", f"{_LETTERS}(bit|B|b)/s"),
]  # fmt: skip
FlopPerSecond = Annotated[
    float, _positive_validator(parse_flop_per_second), _unit_serializer("FLOP/s"),
    _quantity_schema("FLOP per second", f"{_LETTERS}FLOP/s"),
]  # fmt: skip
Seconds = Annotated[
    float,
    _positive_validator(parse_seconds, zero=True),
    _unit_serializer("s"),
    _quantity_schema("seconds", "(s|min|h|d|ms|us|µs|ns|ps)"),
]


def _default_unit_validator(unit: str) -> BeforeValidator:
    return BeforeValidator(lambda value: f"{value!r} {unit}" if is_number(value) else value)


_BARE_OR_TEXT = WithJsonSchema({"type": ["number", "string"], "examples": ["13.75 s", "7 d"], "x-unit": "seconds"})
_BARE_DAYS = _default_unit_validator("d")
Days = Annotated[float, _positive_validator(parse_seconds), _unit_serializer("s"), _BARE_DAYS, _BARE_OR_TEXT]
"""A duration above zero in a field named days; a bare number is in days."""
NamedSeconds = Annotated[Seconds, _default_unit_validator("s"), _BARE_OR_TEXT]
"""A duration in a field named seconds; a bare number is in seconds."""


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a finite int or float, but not a bool."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # of 400 digits
        return False
