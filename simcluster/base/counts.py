"""Parsing and formatting of counts and shares: "70B" parameters, "15T" tokens, "$10M", "40%".

k, M, B and T are powers of 1000; a share lies above 0 and is at most 1.
"""

from __future__ import annotations

import math
import re

from simcluster.base.errors import InputError
from simcluster.base.texts import short_repr

_MAX_NUMBER = 1e99
_TOO_LARGE = 2 * _MAX_NUMBER  # also for integers that no float holds
LETTERS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
"""Factor of each letter that may follow a number."""
_RANGE = re.compile(r"(\d{1,9})(?:\s*-\s*(\d{1,9}))?")
_MAX_COUNT = 1_000_000
_COUNT = re.compile(r"\s*\$?\s*((?:\d[\d,_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([kKMBT]?)\s*")


def float_or_nan(text: str) -> float:
    """Parse a number; return NaN for a text that is not a number."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def parse_count(value: object, what: str, works: str = "it in full or with k, M, B or T, as in 70B") -> float:
    """Parse a number above zero such as 7e10, "70B", "1,024" or "$10M"; errors name the number ``what``."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = float(max(-_TOO_LARGE, min(value, _TOO_LARGE)))
    elif isinstance(value, str) and (found := _COUNT.fullmatch(value)):
        number = float(found[1].replace(",", "").replace("_", "")) * LETTERS[found[2]]
    else:
        number = math.nan
    if number > _MAX_NUMBER:
        raise InputError(f"{what} {short_repr(value)} is too large; it must be at most {_MAX_NUMBER:g}")
    if not 0 < number < math.inf:
        raise InputError(f"{what} {short_repr(value)} is not a number above zero; write {works}")
    return number


def parse_whole_number(value: object, what: str) -> int:
    """Parse a whole number above zero, written in any way that ``parse_count`` accepts."""
    number = parse_count(value, what, "it in full, as in 8")
    if number != int(number):
        raise InputError(f"{what} {short_repr(value)} must be a whole number; write one, as in 8")
    return int(number)


def parse_number_ranges(text: str, option: str, noun: str = "rank") -> list[int]:
    """Parse a list of whole numbers and ranges such as "0-3,32"; errors name the command's ``option``.

    >>> parse_number_ranges("0-3,32", "--ranks")
    [0, 1, 2, 3, 32]
    """
    found: list[int] = []
    given = f"{option} {short_repr(text)}"
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise InputError(f"{given}: {short_repr(part)} is not a {noun}; write whole numbers or ranges: 0,8-15")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise InputError(f"{given}: {part!r} is a descending range; write {last}-{first}")
        if len(found) + last - first >= _MAX_COUNT:
            raise InputError(f"{given}: more than {_MAX_COUNT:,} {noun}s; write fewer")
        found += range(first, last + 1)
    return found


def parse_share(value: object, what: str) -> float:
    """Parse a share above 0 and at most 1, such as 0.4 or "40%"."""
    text = value.strip() if isinstance(value, str) else value
    try:
        if isinstance(text, bool):
            raise TypeError
        part = float(text.removesuffix("%")) / 100 if isinstance(text, str) and text.endswith("%") else float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        part = math.nan
    if not 0 < part <= 1:
        raise InputError(f'{what} {short_repr(value)} must be a share above 0 and at most 1, as in 0.4 or "40%"')
    return part


def format_full_number(number: float) -> str:
    """Format a whole number with all digits (1,000,000), or a fraction with at most six digits."""
    return f"{number:,.0f}" if number == int(number) else f"{number:,.6g}"


def format_count(number: float) -> str:
    """Format a count with four digits and a letter (70B, 1.38T); counts below a million in full (131,072)."""
    for letter in ("T", "B", "M"):
        if number >= LETTERS[letter] * 0.99995:
            scaled = number / LETTERS[letter]
            return f"{scaled:.4g}{letter}" if scaled < 9999.5 else f"{scaled:,.0f}{letter}"
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:.4g}"


def format_tokens(count: float) -> str:
    """Format a token count for a table column, always with four digits and a letter: 15.60T, 300.0B."""
    for letter in ("T", "B", "M"):
        if count >= LETTERS[letter]:
            return f"{count / LETTERS[letter]:#.4g}{letter}".replace(".T", "T")
    return f"{count:,.0f}"


def format_dollars(amount: float) -> str:
    """Format an amount in dollars, rounded: $8.847 M, $94,371, $2.00."""
    if amount >= 999_500:
        return f"${amount / 1e6:,.4g} M" if amount < 9.9995e9 else f"${amount / 1e6:,.0f} M"
    return f"${amount:,.0f}" if amount >= 1000 else f"${amount:.2f}"


def format_whole_dollars(amount: float) -> str:
    """Format an amount in whole dollars: $8,847,360, $94,371; with cents below a hundred: $12.34."""
    return f"${amount:,.2f}" if abs(amount) < 100 else f"${amount:,.0f}"
