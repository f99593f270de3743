"""Probability distributions of durations (repair times, for example), sampled by quantile functions.

A distribution gets ``num_draws`` uniform numbers and returns seconds: no state, so that the numbers of one occurrence
never shift those of another (common random numbers, ``longrun.random_streams``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.units import NamedSeconds, Seconds, parse_seconds
from simcluster.documents.base_spec import Spec
from simcluster.documents.field_annotations import ModelFromRegistry

Fraction = Annotated[float, Field(strict=False, ge=0, le=1)]
Shape = Annotated[float, Field(strict=False, ge=0.05, le=100)]


class DurationSpec(Spec):
    """Probability distribution of durations; the method ``quantile`` converts uniform random numbers to seconds."""

    EXAMPLE: ClassVar[Mapping[str, Any]]

    @property
    def num_draws(self) -> int:
        """Number of uniform random numbers needed to sample one duration."""
        return 1

    def quantile(self, uniform: Floats) -> Floats:
        """Return durations (s) for uniform random numbers in (0, 1), given as an array of shape (..., draws)."""
        raise NotImplementedError

    if TYPE_CHECKING:  # a field of some laws, which pydantic would take for hidden by a property here

        @property
        def mean(self) -> float:
            """Mean duration (s)."""

    def for_gpu_count(self, gpus: int) -> DurationSpec:
        """Return the distribution for a job of ``gpus`` GPUs."""
        return self


class FixedTime(DurationSpec):
    """A fixed duration, optionally with an additional time per GPU."""

    EXAMPLE: ClassVar = {"kind": "fixed", "seconds": "5 min"}

    kind: Literal["fixed"] = "fixed"
    seconds: NamedSeconds
    """Fixed duration in seconds; the time of per_gpu is added."""
    per_gpu: Seconds = 0.0
    """Time that is added per GPU of the job, as for a handshake with every GPU."""

    @property
    def num_draws(self) -> int:
        return 0

    def quantile(self, uniform: Floats) -> Floats:
        return np.full(uniform.shape[:-1], self.seconds)

    @property
    def mean(self) -> float:
        """Mean duration (s)."""
        return self.seconds

    def for_gpu_count(self, gpus: int) -> DurationSpec:
        return FixedTime(seconds=_seconds_text(self.seconds + gpus * self.per_gpu))


class ExponentialTime(DurationSpec):
    """An exponentially distributed duration (memoryless)."""

    EXAMPLE: ClassVar = {"kind": "exponential", "mean": "2 h"}

    kind: Literal["exponential"]
    mean: Seconds
    """Mean of the random duration."""

    def quantile(self, uniform: Floats) -> Floats:
        return -self.mean * np.log(uniform[..., 0])


class LognormalTime(DurationSpec):
    """A lognormally distributed duration."""

    EXAMPLE: ClassVar = {"kind": "lognormal", "median": "4 min", "sigma": 0.5}

    kind: Literal["lognormal"]
    median: Seconds
    """Median of the random duration."""
    sigma: Annotated[float, Field(strict=False, ge=0, le=5)]
    """Standard deviation of the logarithm of the duration."""

    def quantile(self, uniform: Floats) -> Floats:
        from scipy.special import ndtri

        return np.asarray(self.median * np.exp(self.sigma * ndtri(uniform[..., 0])))

    @property
    def mean(self) -> float:
        """Mean duration (s)."""
        return self.median * math.exp(self.sigma**2 / 2)


class WeibullTime(DurationSpec):
    """A Weibull-distributed duration."""

    EXAMPLE: ClassVar = {"kind": "weibull", "mean": "100 d", "shape": 0.7}

    kind: Literal["weibull"]
    mean: Seconds
    """Mean of the random duration."""
    shape: Shape
    """Weibull shape: below 1 most durations are short and a few are long, above 1 all are near the mean."""

    @property
    def scale(self) -> float:
        """Scale parameter (s) of the Weibull distribution; 63 % of durations are shorter."""
        return self.mean / math.gamma(1 + 1 / self.shape)

    def quantile(self, uniform: Floats) -> Floats:
        return self.scale * (-np.log(uniform[..., 0])) ** (1 / self.shape)


class UniformTime(DurationSpec):
    """A uniformly distributed duration, such as the delay until a periodic watchdog detects a failure."""

    EXAMPLE: ClassVar = {"kind": "uniform", "low": "0 s", "high": "10 min"}

    kind: Literal["uniform"]
    low: Seconds
    """Shortest possible duration."""
    high: Seconds
    """Longest possible duration."""

    @model_validator(mode="after")
    def _check_order(self) -> UniformTime:
        if self.high < self.low:
            raise InputError(f"'high' ({self.high:g} s) is less than 'low' ({self.low:g} s); swap the two")
        return self

    def quantile(self, uniform: Floats) -> Floats:
        return self.low + (self.high - self.low) * uniform[..., 0]

    @property
    def mean(self) -> float:
        """Mean duration (s)."""
        return (self.low + self.high) / 2


class ChoiceTime(DurationSpec):
    """One of several durations, chosen at random with given weights."""

    EXAMPLE: ClassVar = {"kind": "choice", "times": ["15 s", "3 min", "30 min"], "weights": [0.7, 0.2, 0.1]}

    kind: Literal["choice"]
    times: Annotated[tuple[Seconds, ...], Field(min_length=1)]
    """Possible durations, of which one is drawn each time."""
    weights: tuple[Annotated[float, Field(strict=False, ge=0)], ...] | None = None
    """Relative probabilities of the durations; default: equal."""

    @model_validator(mode="after")
    def _check_weights(self) -> ChoiceTime:
        weights = self.weights
        if weights is not None and (len(weights) != len(self.times) or not sum(weights)):
            raise InputError(f"got {len(weights)} weights for {len(self.times)} times; write one per time, not all 0")
        return self

    @property
    def _probabilities(self) -> Floats:
        weights = np.array(self.weights or [1.0] * len(self.times))
        return np.asarray(weights / weights.sum())

    def quantile(self, uniform: Floats) -> Floats:
        place = np.searchsorted(np.cumsum(self._probabilities)[:-1], uniform[..., 0], side="right")
        return np.array(self.times)[place]

    @property
    def mean(self) -> float:
        """Mean duration (s)."""
        return float(self._probabilities @ np.array(self.times))


class StagedTime(DurationSpec):
    """A duration with an occasional second stage, such as a technician after an automatic repair."""

    EXAMPLE: ClassVar = {
        "kind": "staged",
        "first": {"kind": "exponential", "mean": "2 h"},
        "second": {"kind": "exponential", "mean": "2 d"},
        "probability": 0.8,
    }

    kind: Literal["staged"]
    first: Time
    """Duration of the first stage, which always takes place."""
    second: Time
    """Duration of the second stage, which only sometimes follows."""
    probability: Fraction
    """Probability that the second stage is needed."""

    @property
    def num_draws(self) -> int:
        return int(1 + self.first.num_draws + self.second.num_draws)

    def quantile(self, uniform: Floats) -> Floats:
        cut = 1 + self.first.num_draws
        more = np.where(uniform[..., 0] < self.probability, self.second.quantile(uniform[..., cut:]), 0.0)
        return np.asarray(self.first.quantile(uniform[..., 1:cut]) + more)

    @property
    def mean(self) -> float:
        """Mean duration (s)."""
        return float(self.first.mean + self.probability * self.second.mean)

    def for_gpu_count(self, gpus: int) -> DurationSpec:
        first, second = self.first.for_gpu_count(gpus), self.second.for_gpu_count(gpus)
        return self.model_copy(update={"first": first, "second": second})


TIMES: dict[str, type[DurationSpec]] = {
    "fixed": FixedTime,
    "exponential": ExponentialTime,
    "lognormal": LognormalTime,
    "weibull": WeibullTime,
    "uniform": UniformTime,
    "choice": ChoiceTime,
    "staged": StagedTime,
}
"""Distributions of durations by their ``kind`` in documents; to add one, write a class and a line here."""


def _parse_duration(value: object) -> object:
    if isinstance(value, Mapping) and "kind" not in value:
        return {"kind": "fixed", "seconds": "0 s", **value}
    if isinstance(value, Mapping | DurationSpec):
        return value
    return {"kind": "fixed", "seconds": _seconds_text(parse_seconds(value))}


def _seconds_text(seconds: float) -> str:
    return f"{seconds!r} s"


Time = Annotated[Any, ModelFromRegistry(TIMES), BeforeValidator(_parse_duration)]
"""Field type of a distribution of durations, or of a fixed duration: "5 min"."""
StagedTime.model_rebuild()
