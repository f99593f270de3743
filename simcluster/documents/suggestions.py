"""What messages offer: numbers near a wanted one that would fit, and a key and its value as YAML has them."""

from __future__ import annotations

import re

_KEY_AND_VALUE = re.compile(r"\s*(?:- +)?['\"]?([A-Za-z_][\w.-]*)['\"]?(?::|\s*=\s*)(?![/\\:=\s])(\S[^#\n]*)")
"""A key and a value that a colon without a space joins, or an equals sign: no URL, and no path of a disk."""


def with_a_colon(text: str) -> str:
    """ "; write tp: 2, with a space behind the colon" for a text that begins as "tp:2" or "tp = 2"; or nothing."""
    found = _KEY_AND_VALUE.match(text)
    if not found:
        return ""
    value = "..." if found[2][0] in "{[" else re.split(r"[,}\s]", found[2].strip())[0]
    return f"; write {found[1]}: {value[:30]}, with a colon and a space behind it"


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
