"""Time breakdown of one rank: the rank's activity at each instant, derived only from its own spans.

At any instant a rank is in exactly one state: computing (by kind); else communicating (exposed, by axis); else stopped
for a checkpoint, for data or a validation; else waiting, for its host (optimizer, offload, other), for late ranks of
its stage (straggler_wait) or for other stages (bubble). So the breakdown sums to the step.

Definitions: CONTRACT.md, "Result JSON"; overlap as HolisticTraceAnalysis counts it (|C and N| / |N|).
"""

from __future__ import annotations

from dataclasses import dataclass

from simcluster.results.span_states import ENTRIES

BREAKDOWN = (
    "forward", "backward", "recompute", "exposed_tp", "exposed_pp", "exposed_dp", "exposed_cp", "exposed_ep", "bubble",
    "straggler_wait", "optimizer", "checkpoint", "data", "validation", "offload", "other",
)  # fmt: skip


@dataclass(frozen=True)
class RankBreakdown:
    """How long (s) one rank spends on each activity in a step.

    ``states`` are the entries of the breakdown; ``communication`` is time with something on the wire, ``overlapped``
    the part of it that overlaps with compute.
    """

    states: dict[str, float]
    communication: float
    overlapped: float

    @classmethod
    def from_seconds(cls, seconds: list[float]) -> RankBreakdown:
        """Build a rank's time breakdown from the list of seconds that ``RankStates.measure`` returns."""
        states = dict.fromkeys(BREAKDOWN, 0.0)
        *entries, communication, overlapped = seconds
        for name, part in zip(ENTRIES, entries, strict=True):
            states[name] += part
        return cls(states, communication, overlapped)
