"""What messages offer: numbers near a wanted one that would fit, and a key and its value as YAML has them."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"-?\d{1,9}(\.\d{1,9})?")
_RANGE = re.compile(r"(\d{1,9}) *(?:\.\.+|-|:|to) *(\d{1,9})")
_SEVERAL = re.compile(r"\d{1,9}(?: *[,;|/ ] *\d{1,9})+")
_KEY_AND_VALUE = re.compile(r"\s*(?:- +)?['\"]?([A-Za-z_][\w.-]*)['\"]?(?::|\s*=\s*)(?![/\\:=\s])(\S[^#\n]*)")
"""A key and a value that a colon without a space joins, or an equals sign: no URL, and no path of a disk."""


def with_a_colon(text: str) -> str:
    """ "; write tp: 2, with a space behind the colon" for a text that begins as "tp:2" or "tp = 2"; or nothing."""
    found = _KEY_AND_VALUE.match(text)
    if not found:
        return ""
    value = "..." if found[2][0] in "{[" else re.split(r"[,}\s]", found[2].strip())[0]
    return f"; write {found[1]}: {value[:30]}, with a colon and a space behind it"


def number_in(text: str, kind: str) -> str:
    """The number that a text holds, as it is written where a number is expected: 0.96 of '96%', 8 of '8'; or ""."""
    plain, percent, rest = text.strip().replace("_", "").partition("%")
    whole = plain.isascii() and plain.isdigit()
    if kind.startswith("int"):
        return f"{plain}, without quotes" if whole and not percent else ""
    if rest or not _NUMBER.fullmatch(plain.strip()):
        return ""
    return f"{float(plain) / 100:.6g}" if percent else f"{plain}, without quotes"


def range_in(text: str, most: int = 3) -> str:
    """The first numbers of a range, written out: 1,2,3 of '1..4' and '1-8', 1,2,4 of '1|2|4'; or ""."""
    if several := _SEVERAL.fullmatch(text.strip()):
        return ",".join(re.split(r"\D+", several[0]))
    ends = _RANGE.fullmatch(text.strip())
    first, last = (int(ends[1]), int(ends[2])) if ends else (0, 0)
    return ",".join(map(str, range(first, last + 1)[:most])) if first < last else ""


def near_divisors(number: int, wanted: int) -> list[int]:
    """The divisors of ``number`` nearest to ``wanted``, one on each side where there is one."""
    found = divisors(number)
    below = [divisor for divisor in found if divisor < wanted][-1:]
    return below + [divisor for divisor in found if divisor > wanted][:1]


def near_multiples(step: int, wanted: int) -> list[int]:
    """The positive multiples of ``step`` nearest to ``wanted``, one on each side where there is one."""
    below = wanted // step * step
    return [multiple for multiple in (below, below + step) if multiple > 0]


def divisors(number: int) -> list[int]:
    """All of them, smallest first."""
    small = [candidate for candidate in range(1, int(number**0.5) + 1) if number % candidate == 0]
    return sorted({*small, *(number // candidate for candidate in small)})
