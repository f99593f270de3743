"""Suggestions for error messages: valid numbers near a wrong one, and corrected YAML."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"-?\d{1,9}(\.\d{1,9})?")
_RANGE = re.compile(r"(\d{1,9}) *(?:\.\.+|-|:|to) *(\d{1,9})")
_SEVERAL = re.compile(r"\d{1,9}(?: *[,;|/ ] *\d{1,9})+")
_KEY_AND_VALUE = re.compile(r"\s*(?:- +)?['\"]?([A-Za-z_][\w.-]*)['\"]?(?::|\s*=\s*)(?![/\\:=\s])(\S[^#\n]*)")
"""A key and a value joined by a colon without a space, or by an equals sign; not a URL or a drive path."""


def colon_hint(text: str) -> str:
    """Return "; write tp: 2, with a colon and a space after it" for text such as "tp:2"; "" for other text."""
    found = _KEY_AND_VALUE.match(text)
    if not found:
        return ""
    value = "..." if found[2][0] in "{[" else re.split(r"[,}\s]", found[2].strip())[0]
    return f"; write {found[1]}: {value[:30]}, with a colon and a space after it"


def find_number(text: str, kind: str) -> str:
    """Return the number in a quoted text as YAML writes it, 0.96 for '96%'; "" if it is not a number of ``kind``."""
    plain, percent, rest = text.strip().replace("_", "").partition("%")
    whole = plain.isascii() and plain.isdigit()
    if kind.startswith("int"):
        return f"{plain}, without quotes" if whole and not percent else ""
    if rest or not _NUMBER.fullmatch(plain.strip()):
        return ""
    return f"{float(plain) / 100:.6g}" if percent else f"{plain}, without quotes"


def expand_range(text: str, most: int = 3) -> str:
    """Return the first numbers of a range as a list, 1,2,3 for '1..4' and 1,2,4 for '1|2|4'; "" if it is none."""
    if several := _SEVERAL.fullmatch(text.strip()):
        return ",".join(re.split(r"\D+", several[0]))
    ends = _RANGE.fullmatch(text.strip())
    first, last = (int(ends[1]), int(ends[2])) if ends else (0, 0)
    return ",".join(map(str, range(first, last + 1)[:most])) if first < last else ""


def near_divisors(number: int, wanted: int) -> list[int]:
    """Return the divisors of ``number`` just below and just above ``wanted``."""
    found = divisors(number)
    below = [divisor for divisor in found if divisor < wanted][-1:]
    return below + [divisor for divisor in found if divisor > wanted][:1]


def near_multiples(step: int, wanted: int) -> list[int]:
    """Return the positive multiples of ``step`` just below and just above ``wanted``."""
    below = wanted // step * step
    return [multiple for multiple in (below, below + step) if multiple > 0]


def divisors(number: int) -> list[int]:
    """Return all divisors of a number, ascending."""
    small = [candidate for candidate in range(1, int(number**0.5) + 1) if number % candidate == 0]
    return sorted({*small, *(number // candidate for candidate in small)})
