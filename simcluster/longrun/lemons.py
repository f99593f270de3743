"""Lemons: machines of a bad batch that fail again and again, and rules by which one is retired.

A rule is a small function of how long ago a machine's failures were (s, the one now first, inf where there was none;
any shape, failures along the first axis), of a limit, and of a window (s); it says which are to be retired.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from simcluster.base.arrays import Bools, Floats

RetireRule = Callable[[Floats, float, float], Bools]

REMEMBERED = {"fading": 8}
"""Failures of a machine that a rule looks back at at least; others look at as many as their limit."""


def in_window(ages: Floats, limit: float, window: float) -> Bools:
    """As many failures as the limit within the window, this one among them."""
    return np.asarray((ages <= min(window, np.finfo(np.float64).max)).sum(axis=0) >= limit)


def fading(ages: Floats, limit: float, window: float) -> Bools:
    """A score of 1 for this failure and less for those before, half of it a window ago, has come to the limit."""
    return np.asarray((0.5 ** (ages / window)).sum(axis=0) >= limit)


RETIRE: Mapping[str, RetireRule] = {"window": in_window, "fading": fading}
"""Rules by name: a function and a line here."""


def remembered(rule: str, limit: float) -> int:
    """Failures of a machine that are looked back at."""
    return max(REMEMBERED.get(rule, 1), math.ceil(limit))


def is_retired(failures: Sequence[float], rule: str, limit: float, window: float) -> bool:
    """Return whether a machine that failed at these times (s, the last one now) is to be retired."""
    last = failures[: -1 - remembered(rule, limit) : -1]
    return bool(RETIRE[rule](failures[-1] - np.array(last), limit, window))
