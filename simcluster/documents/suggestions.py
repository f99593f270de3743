"""Numbers near a wanted one that would fit: what messages offer."""

from __future__ import annotations


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
