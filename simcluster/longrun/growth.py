"""Exponential growth, as of the time that is needed where what fails is begun anew.  Pure."""

from __future__ import annotations

import math

_LARGEST = 709.0  # of exponents whose power of e is a float


def grown(exponent: float) -> float:
    """e to the exponent; infinite where no float holds it: what is tried again for so long never ends."""
    return math.exp(exponent) if exponent < _LARGEST else math.inf


def gained(exponent: float) -> float:
    """The same less 1, exact for small exponents."""
    return math.expm1(exponent) if exponent < _LARGEST else math.inf
