"""The grid that simulated times live on.

Durations are rounded to multiples of 2**-44 s (57 femtoseconds).  Sums and differences of such numbers are exact in
float64 up to 512 s, so addition is associative: a chain of ops collapsed into one event, a rank that stands for many,
and a vectorised longest path all give the same bits as the plain event-by-event run.  Beyond 512 s times are still
right to 1 part in 10**15; only that bit-for-bit promise ends.
"""

from __future__ import annotations

import math

_TICKS_PER_SECOND = 2.0**44
TICK = 1.0 / _TICKS_PER_SECOND


def on_grid(seconds: float) -> float:
    """The multiple of TICK nearest to a duration in seconds (infinity stays infinity)."""
    ticks = seconds * _TICKS_PER_SECOND
    return round(ticks) / _TICKS_PER_SECOND if math.isfinite(ticks) else seconds
