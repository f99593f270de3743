"""Why one run's step is longer than another's: the difference, cause by cause, summing to it.

Entries of the breakdown are differences themselves.  Exposed communication changes for three reasons that ask for
different remedies, so each axis' is split: its transfers take another time on free links (*traffic*: bytes, algorithm,
slower links), another part of them hides behind compute (*hiding*), or links are shared with others (*contention*).
What compute takes longer because communication goes on beside it is a cause of its own (*interference*); the entries of
compute are without it.  Imports results, metrics, contention and overlaps.
"""

from __future__ import annotations

from dataclasses import dataclass

from simcluster.measuring.contention import slowed_seconds
from simcluster.measuring.metrics import BREAKDOWN, COMPUTE_KINDS, EXPOSED
from simcluster.measuring.overlap import Key, Overlap
from simcluster.result import Run

_COMPUTE = ("forward", "backward", "recompute", "optimizer", "other")
_WAITING = ("bubble", "straggler_wait")

CAUSES = (
    *_COMPUTE,
    "interference",
    *(f"{axis}_{reason}" for axis in EXPOSED for reason in ("traffic", "hiding", "contention")),
    *_WAITING,
)
"""Names of all causes, in the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class Communication:
    """One axis of one run, in seconds per step of the mean rank.

    ``free`` is what its transfers take on free links, ``exposed`` the part of that which the breakdown counts, and
    ``contention`` what sharing links adds to it.
    """

    free: float
    exposed: float
    contention: float

    @classmethod
    def of(cls, overlap: Overlap) -> Communication:
        return cls(
            overlap.wire - overlap.contention, overlap.counted - overlap.counted_contention, overlap.counted_contention
        )


def attribute(base: Run, other: Run) -> dict[str, float]:
    """Seconds per step by which ``other`` takes longer than ``base``, by cause (``CAUSES``), mean over ranks.

    They sum to the difference of the step times, as closely as floats add.
    """
    before, after = _states(base), _states(other)
    assert {name for name in BREAKDOWN if name.startswith("exposed_")} == {f"exposed_{axis}" for axis in EXPOSED}
    found = {name: after[name] - before[name] for name in (*_COMPUTE, "interference", *_WAITING)}
    for axis in EXPOSED:
        parts = _parts(_axis(base, axis), _axis(other, axis))
        found |= {f"{axis}_{reason}": seconds for reason, seconds in parts.items()}
    return {cause: found[cause] for cause in CAUSES}


def grouped(causes: dict[str, float]) -> dict[str, float]:
    """The causes with all contention as one, interference included: compute, exposed_<axis>, contention, waiting."""
    found = {name: causes[name] for name in _COMPUTE}
    for axis in EXPOSED:
        found[f"exposed_{axis}"] = causes[f"{axis}_traffic"] + causes[f"{axis}_hiding"]
    found["contention"] = causes["interference"] + sum(causes[f"{axis}_contention"] for axis in EXPOSED)
    return found | {name: causes[name] for name in _WAITING}


def _states(run: Run) -> dict[str, float]:
    """The breakdown with what slows compute down apart from it."""
    slowed = slowed_seconds(run.lowered.program, run.record.start, run.record.slowed, run.weights, run.ranks.start)
    found = dict(run.times.breakdown)
    for state, kinds in COMPUTE_KINDS.items():
        found[state] -= sum(slowed.get(kind, 0.0) for kind in kinds) / run.steps
    return found | {"interference": sum(slowed.values()) / run.steps}


def _axis(run: Run, axis: str) -> Communication:
    return Communication.of(run.overlap.mean.get(Key(axis), Overlap()))


def _parts(before: Communication, after: Communication) -> dict[str, float]:
    """Exposed is free x (part that is exposed): each factor's change counts at the mean of the other factor."""
    part_before = before.exposed / before.free if before.free else None
    part_after = after.exposed / after.free if after.free else None
    first = part_before if part_before is not None else part_after or 0.0  # an axis that is new hides no other way
    second = part_after if part_after is not None else first
    return {
        "traffic": (after.free - before.free) * (first + second) / 2,
        "hiding": (second - first) * (before.free + after.free) / 2,
        "contention": after.contention - before.contention,
    }
