"""Step times of many replicas: mean with confidence interval, quantiles, and the difference between two scenarios."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.display import Displayable
from simcluster.base.tables import rows_to_frame
from simcluster.documents.argument_types import check_arguments

if TYPE_CHECKING:
    from simcluster.base.tables import DataFrame

_STUDENT = (12.706, 4.303, 3.182, 2.776)  # 97.5 % quantiles of Student's t, 1 to 4 degrees of freedom


@dataclass(frozen=True)
class Distribution(Displayable):
    """Step times (s) of replicas, which are simulations that differ only in the random seed.

    ``planned`` is the step time without randomness (with all deterministic faults); ``method`` is how the replicas were
    simulated: "sweep" or "events".
    """

    step_times: Floats
    planned: float
    method: str

    def __len__(self) -> int:
        return len(self.step_times)

    @property
    def mean(self) -> float:
        """Mean step time of the replicas, in seconds."""
        return float(self.step_times.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of the mean step time (s), by Student's t distribution."""
        half = confidence_half_width(self.step_times)
        return self.mean - half, self.mean + half

    def quantile(self, part: float) -> float:
        """Return the step time (s) that a fraction ``part`` of the replicas stays below, interpolated."""
        return float(np.quantile(self.step_times, part))

    @property
    def table(self) -> DataFrame:
        """DataFrame with one row per replica and its step_time_s."""
        return rows_to_frame([{"step_time_s": each} for each in self.step_times.tolist()]).rename_axis("replica")

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics and step times for JSON."""
        low, high = self.interval
        return {
            "replicas": len(self),
            "mean_s": self.mean,
            "mean_95_s": [low, high],
            "median_s": self.quantile(0.5),
            "p5_s": self.quantile(0.05),
            "p95_s": self.quantile(0.95),
            "min_s": float(self.step_times.min()),
            "max_s": float(self.step_times.max()),
            "deviation_s": float(self.step_times.std(ddof=1)) if len(self) > 1 else 0.0,
            "without_chance_s": self.planned,
            "method": self.method,
            "step_times_s": self.step_times.tolist(),
        }


@dataclass(frozen=True, slots=True)
class MeanDifference(Displayable):
    """Difference (s) between the mean step times of two scenarios, with its 95 % confidence interval.

    ``noise_saved`` is how many times narrower that is than without common random numbers.
    """

    mean: float
    interval: tuple[float, float]
    noise_saved: float


@check_arguments
def compare_replicas(one: Distribution, other: Distribution) -> MeanDifference:
    """Return by how much the mean step time of the second distribution exceeds the first, comparing equal seeds."""
    count = min(len(one), len(other))
    pairs = other.step_times[:count] - one.step_times[:count]
    mean, half = float(pairs.mean()), confidence_half_width(pairs)
    apart = math.hypot(confidence_half_width(one.step_times[:count]), confidence_half_width(other.step_times[:count]))
    return MeanDifference(mean, (mean - half, mean + half), apart / half if half else math.inf)


def confidence_half_width(values: Floats) -> float:
    """Return half the width of the 95 % confidence interval of a mean; infinite for a single value."""
    freedom = len(values) - 1
    if not freedom:
        return math.inf
    if freedom <= len(_STUDENT):
        student = _STUDENT[freedom - 1]
    else:  # Cornish-Fisher, right to 0.1 %
        z = NormalDist().inv_cdf(0.975)
        student = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        student += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    return float(student * values.std(ddof=1) / math.sqrt(len(values)))
