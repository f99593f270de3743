"""A measured step beside the simulated one: its throughput, MFU and HFU, and how far apart the two are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from simcluster.planning.footprint import Facts


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """What a real run of the job reached: seconds a step, tokens/s, MFU and HFU by the same conventions.

    ``gap`` is by how many seconds it took longer than simulated (below zero: it was faster).
    """

    step_time: float
    tokens_per_s: float
    mfu: float
    hfu: float
    gap: float
    source: str = ""

    @classmethod
    def of(cls, step_time: float, facts: Facts, simulated: float, source: str = "") -> MeasuredStep:
        """From the measured and the simulated seconds of a step of so much work."""
        rate = step_time * facts.ranks * facts.peak_flops
        return cls(
            step_time,
            facts.tokens / step_time,
            facts.model_flops / rate,
            facts.hardware_flops / rate,
            step_time - simulated,
            source,
        )

    def to_dict(self) -> dict[str, Any]:
        """As in the result JSON."""
        values = asdict(self)
        return {"step_time_s": values.pop("step_time"), "gap_s": values.pop("gap"), **values}
