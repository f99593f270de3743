"""What alone would explain that a measured step is longer or shorter than the simulated one, from sensitivities.

A part p of the step S goes with a resource: S (1 - p) + S p / x at x times its rate.  So a gap g is explained by
x = 1 / (1 + g / (S p)), and of latency or launch, where times are asked for, by 1 + g / (S p) times the time.  To first
order: another resource may hold the step up long before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simcluster.studies.whatif.sensitivities import RESOURCES, TIMES, Sensitivity

_NOTHING = 1e-6  # of the step: a resource that it does not depend on


@dataclass(frozen=True, slots=True)
class GapCause:
    """A resource, the ``part`` of the step that goes with it, and the ``factor`` on it that would close the gap alone.

    ``factor`` is on the rate, of latency and launch on the time; None where none closes it.
    """

    resource: str
    part: float
    factor: float | None

    def in_words(self) -> str:
        """Such as: peak FLOP/s at 0.870 of what is counted (61.2 % of the step)."""
        name, part = RESOURCES[self.resource], f"{self.part:.1%} of the step"
        if self.factor is None:
            return f"{name}: not alone ({part})"
        return f"{name}: {self.factor:.3f} x what the device and the cluster say ({part})"

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"resource": self.resource, "part": self.part, "factor": self.factor}


def gap_causes(found: Sequence[Sensitivity], gap: float) -> list[GapCause]:
    """Of each resource that the step depends on, most of the step first; ``gap`` is measured less simulated (s)."""
    causes = []
    for each in found:
        part = each.gain * (1 + each.by)
        if part <= _NOTHING:
            continue
        times = 1 + gap / (each.before * part)  # as much of its time
        factor = None if times <= 0 else times if each.resource in TIMES else 1 / times
        causes.append(GapCause(each.resource, part, factor))
    return sorted(causes, key=lambda cause: -cause.part)
