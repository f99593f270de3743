"""Probability distributions of durations in documents, each a quantile function of uniform draws.

A distribution gets ``draws`` uniform numbers and returns seconds: no state, so that the numbers of one occurrence never
shift those of another (common random numbers, ``streams``).
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
from simcluster.documents.kinds import OneOf
from simcluster.documents.spec import Spec

Fraction = Annotated[float, Field(strict=False, ge=0, le=1)]
Shape = Annotated[float, Field(strict=False, ge=0.05, le=100)]


class TimeSpec(Spec):
    """Distribution of durations: ``quantile`` maps uniform numbers (..., ``draws``) to seconds."""

    EXAMPLE: ClassVar[Mapping[str, Any]]

    @property
    def draws(self) -> int:
        """Number of uniform random numbers per duration."""
        return 1

    def quantile(self, uniform: Floats) -> Floats:
        """Return the durations (s) for uniform numbers in (0, 1), shape (..., draws)."""
        raise NotImplementedError

    if TYPE_CHECKING:  # a field of some laws, which pydantic would take for hidden by a property here

        @property
        def mean(self) -> float:
            """Mean duration (s)."""

    def on(self, gpus: int) -> TimeSpec:
        """Return the distribution in a job of ``gpus`` GPUs."""
        return self


class FixedTime(TimeSpec):
    """A fixed duration."""

    EXAMPLE: ClassVar = {"kind": "fixed", "seconds": "5 min"}

    kind: Literal["fixed"] = "fixed"
    seconds: NamedSeconds
    """The duration."""
    per_gpu: Seconds = 0.0
    """Additional time per GPU of the job, as for a handshake with every GPU."""

    @property
    def draws(self) -> int:
        """Return 0: a fixed duration needs no random numbers."""
        return 0

    def quantile(self, uniform: Floats) -> Floats:
        """Return the fixed duration (s) for all draws."""
        return np.full(uniform.shape[:-1], self.seconds)

    @property
    def mean(self) -> float:
        """Mean duration (s)."""
        return self.seconds

    def on(self, gpus: int) -> TimeSpec:
        """Return the duration with the additional time per GPU included."""
        return FixedTime(seconds=_text(self.seconds + gpus * self.per_gpu))


class ExponentialTime(TimeSpec):
    """A memoryless duration."""

    EXAMPLE: ClassVar = {"kind": "exponential", "mean": "2 h"}

    kind: Literal["exponential"]
    mean: Seconds
    """Mean duration."""

    def quantile(self, uniform: Floats) -> Floats:
        """Return -mean ln u."""
        return -self.mean * np.log(uniform[..., 0])


class LognormalTime(TimeSpec):
    """A lognormal duration."""

    EXAMPLE: ClassVar = {"kind": "lognormal", "median": "4 min", "sigma": 0.5}

    kind: Literal["lognormal"]
    median: Seconds
    """Median duration."""
    sigma: Annotated[float, Field(strict=False, ge=0, le=5)]
    """Standard deviation of the logarithm of the duration."""

    def quantile(self, uniform: Floats) -> Floats:
        """Return median exp(sigma z), z standard normal."""
        from scipy.special import ndtri

        return np.asarray(self.median * np.exp(self.sigma * ndtri(uniform[..., 0])))

    @property
    def mean(self) -> float:
        """Mean duration (s)."""
        return self.median * math.exp(self.sigma**2 / 2)


class WeibullTime(TimeSpec):
    """A Weibull duration."""

    EXAMPLE: ClassVar = {"kind": "weibull", "mean": "100 d", "shape": 0.7}

    kind: Literal["weibull"]
    mean: Seconds
    """Mean duration."""
    shape: Shape
    """Weibull shape: below 1 many durations are short, above 1 all are near the mean."""

    @property
    def scale(self) -> float:
        """Scale parameter (s): 63 % of durations are shorter."""
        return self.mean / math.gamma(1 + 1 / self.shape)

    def quantile(self, uniform: Floats) -> Floats:
        """Return scale (-ln u)^(1/shape)."""
        return self.scale * (-np.log(uniform[..., 0])) ** (1 / self.shape)


class UniformTime(TimeSpec):
    """A duration uniform between two limits, as when a periodic watchdog detects failures."""

    EXAMPLE: ClassVar = {"kind": "uniform", "low": "0 s", "high": "10 min"}

    kind: Literal["uniform"]
    low: Seconds
    """Shortest duration."""
    high: Seconds
    """Longest duration."""

    @model_validator(mode="after")
    def _ordered(self) -> UniformTime:
        if self.high < self.low:
            raise InputError(f"high ({self.high:g} s) is below low ({self.low:g} s); swap them")
        return self

    def quantile(self, uniform: Floats) -> Floats:
        """Return low + (high - low) u."""
        return self.low + (self.high - self.low) * uniform[..., 0]

    @property
    def mean(self) -> float:
        """Mean duration (s)."""
        return (self.low + self.high) / 2


class ChoiceTime(TimeSpec):
    """One of several durations."""

    EXAMPLE: ClassVar = {"kind": "choice", "times": ["15 s", "3 min", "30 min"], "weights": [0.7, 0.2, 0.1]}

    kind: Literal["choice"]
    times: Annotated[tuple[Seconds, ...], Field(min_length=1)]
    """Durations, of which one is drawn each time."""
    weights: tuple[Annotated[float, Field(strict=False, ge=0)], ...] | None = None
    """Relative probabilities of the durations; default: equal."""

    @model_validator(mode="after")
    def _as_many(self) -> ChoiceTime:
        weights = self.weights
        if weights is not None and (len(weights) != len(self.times) or not sum(weights)):
            raise InputError(f"weights: {len(weights)} for {len(self.times)} times; write one for each, not all zero")
        return self

    @property
    def _shares(self) -> Floats:
        weights = np.array(self.weights or [1.0] * len(self.times))
        return np.asarray(weights / weights.sum())

    def quantile(self, uniform: Floats) -> Floats:
        """Return the duration whose probability interval contains u."""
        place = np.searchsorted(np.cumsum(self._shares)[:-1], uniform[..., 0], side="right")
        return np.array(self.times)[place]

    @property
    def mean(self) -> float:
        """Mean duration (s)."""
        return float(self._shares @ np.array(self.times))


class StagedTime(TimeSpec):
    """A duration with an occasional second stage: an automatic repair, then a technician."""

    EXAMPLE: ClassVar = {
        "kind": "staged",
        "first": {"kind": "exponential", "mean": "2 h"},
        "second": {"kind": "exponential", "mean": "2 d"},
        "probability": 0.8,
    }

    kind: Literal["staged"]
    first: Time
    """Duration of the first stage."""
    second: Time
    """Duration of the second stage."""
    probability: Fraction
    """Probability of a second stage."""

    @property
    def draws(self) -> int:
        """Number of uniform random numbers: those of both stages, and one for the choice."""
        return int(1 + self.first.draws + self.second.draws)

    def quantile(self, uniform: Floats) -> Floats:
        """Return the first duration, or the sum of both."""
        cut = 1 + self.first.draws
        more = np.where(uniform[..., 0] < self.probability, self.second.quantile(uniform[..., cut:]), 0.0)
        return np.asarray(self.first.quantile(uniform[..., 1:cut]) + more)

    @property
    def mean(self) -> float:
        """Mean duration (s)."""
        return float(self.first.mean + self.probability * self.second.mean)

    def on(self, gpus: int) -> TimeSpec:
        """Return the distribution with both stages in a job of ``gpus`` GPUs."""
        return self.model_copy(update={"first": self.first.on(gpus), "second": self.second.on(gpus)})


TIMES: dict[str, type[TimeSpec]] = {
    "fixed": FixedTime,
    "exponential": ExponentialTime,
    "lognormal": LognormalTime,
    "weibull": WeibullTime,
    "uniform": UniformTime,
    "choice": ChoiceTime,
    "staged": StagedTime,
}
"""Distributions of durations by their word in documents: add a class and a line here."""


def _as_document(value: object) -> object:
    """Return "5 min", and a mapping without a kind, as a fixed time."""
    if isinstance(value, Mapping) and "kind" not in value:
        return {"kind": "fixed", "seconds": "0 s", **value}
    if isinstance(value, Mapping | TimeSpec):
        return value
    return {"kind": "fixed", "seconds": _text(parse_seconds(value))}


def _text(seconds: float) -> str:
    return f"{seconds!r} s"


Time = Annotated[Any, OneOf(TIMES), BeforeValidator(_as_document)]
"""Field type of a distribution of durations, or of a fixed duration: "5 min"."""
StagedTime.model_rebuild()
