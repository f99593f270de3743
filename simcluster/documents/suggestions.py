"""Corrections that error messages suggest: valid numbers near an invalid one, and fixed YAML."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"-?\d{1,9}(\.\d{1,9})?")
_RANGE = re.compile(r"(\d{1,9}) *(?:\.\.+|-|:|to) *(\d{1,9})")
_SEVERAL = re.compile(r"\d{1,9}(?: *[,;|/ ] *\d{1,9})+")
_KEY_AND_VALUE = re.compile(r"\s*(?:- +)?['\"]?([A-Za-z_][\w.-]*)['\"]?(?::|\s*=\s*)(?![/\\:=\s])(\S[^#\n]*)")
"""A key and a value joined by a colon without a space, or by an equals sign; not a URL or a drive path."""


def missing_space_hint(text: str) -> str:
    """Return a hint to write "tp: 2", with a space after the colon, for a text such as "tp:2"; "" otherwise."""
    found = _KEY_AND_VALUE.match(text)
    if not found:
        return ""
    value = "..." if found[2][0] in "{[" else re.split(r"[,}\s]", found[2].strip())[0]
    return f"; write {found[1]}: {value[:30]}, with a colon and a space after it"


def unquote_number(text: str, kind: str) -> str:
    """Return the number in a text as YAML writes it (0.96 for '96%'); "" if the text is not of type ``kind``."""
    plain, percent, rest = text.strip().replace("_", "").partition("%")
    whole = plain.isascii() and plain.isdigit()
    if kind.startswith("int"):
        return f"{plain}, without quotes" if whole and not percent else ""
    if rest or not _NUMBER.fullmatch(plain.strip()):
        return ""
    return f"{float(plain) / 100:.6g}" if percent else f"{plain}, without quotes"


def expand_number_range(text: str, count: int = 3) -> str:
    """Return a range's first numbers as text: "1,2,3" for '1..4', "1,2,4" for '1|2|4'; "" for other text."""
    if several := _SEVERAL.fullmatch(text.strip()):
        return ",".join(re.split(r"\D+", several[0]))
    ends = _RANGE.fullmatch(text.strip())
    first, last = (int(ends[1]), int(ends[2])) if ends else (0, 0)
    return ",".join(map(str, range(first, last + 1)[:count])) if first < last else ""


def nearest_divisors(number: int, wanted: int) -> list[int]:
    """Return the divisors of ``number`` next to ``wanted``: the next lower and the next higher, if they exist."""
    found = divisors(number)
    below = [divisor for divisor in found if divisor < wanted][-1:]
    return below + [divisor for divisor in found if divisor > wanted][:1]


def nearest_multiples(step: int, wanted: int) -> list[int]:
    """Return the positive multiples of ``step`` next to ``wanted``: at or below it, and above it."""
    below = wanted // step * step
    return [multiple for multiple in (below, below + step) if multiple > 0]


def divisors(number: int) -> list[int]:
    """Return all divisors of a number in ascending order."""
    small = [candidate for candidate in range(1, int(number**0.5) + 1) if number % candidate == 0]
    return sorted({*small, *(number // candidate for candidate in small)})
