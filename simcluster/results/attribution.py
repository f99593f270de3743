"""Why one run's step is longer than another's: the difference, cause by cause, summing to it.

Entries of the breakdown are differences themselves.  Exposed communication changes for three reasons that ask for
different remedies, so each axis' is split: its transfers take another time on free links (*traffic*: bytes, algorithm,
slower links), another part of them hides behind compute (*hiding*), or links are shared with others (*contention*).
What compute takes longer because communication goes on beside it is a cause of its own (*interference*); the entries of
compute are without it.
"""

from __future__ import annotations

from collections.abc import Mapping

from simcluster.results.account import COMPUTE, STATES, WAITING, Account, AxisCommunication
from simcluster.results.metrics import EXPOSED

CAUSES = (
    *COMPUTE,
    "interference",
    *(f"{axis}_{reason}" for axis in EXPOSED for reason in ("traffic", "hiding", "contention")),
    *WAITING,
)
"""Names of all causes, in the order in which they are shown."""


def attribute(base: Account, other: Account) -> dict[str, float]:
    """Seconds per step by which ``other`` takes longer than ``base``, by cause (``CAUSES``), mean over ranks.

    They sum to the difference of the step times, as closely as floats add.
    """
    found = {name: other.states[name] - base.states[name] for name in STATES}
    for axis in EXPOSED:
        parts = _parts(base.axes[axis], other.axes[axis])
        found |= {f"{axis}_{reason}": seconds for reason, seconds in parts.items()}
    return {cause: found[cause] for cause in CAUSES}


def stage_differences(base: Account, other: Account) -> list[dict[str, float]]:
    """Per stage, by how much each entry of its breakdown is longer; a stage's entries sum to the difference too.

    Empty where the two have different numbers of stages: no stage of one is a stage of the other.
    """
    if len(base.stages) != len(other.stages):
        return []
    pairs = zip(base.stages, other.stages, strict=True)
    return [{name: after[name] - before[name] for name in before} for before, after in pairs]


def grouped(causes: Mapping[str, float]) -> dict[str, float]:
    """The causes with all contention as one, interference included: compute, exposed_<axis>, contention, waiting."""
    found = {name: causes[name] for name in COMPUTE}
    for axis in EXPOSED:
        found[f"exposed_{axis}"] = causes[f"{axis}_traffic"] + causes[f"{axis}_hiding"]
    found["contention"] = causes["interference"] + sum(causes[f"{axis}_contention"] for axis in EXPOSED)
    return found | {name: causes[name] for name in WAITING}


def _parts(before: AxisCommunication, after: AxisCommunication) -> dict[str, float]:
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
