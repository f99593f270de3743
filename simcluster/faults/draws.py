"""Chance, as documents: factors and lengths that are drawn, each from a stream of its own.

A stream belongs to a seed, a fault and an identity (a rank's pass of a microbatch, a sequence of the batch), whatever
else is drawn and in which order.  So runs that differ in one thing have all other draws in common (common random
numbers), and a rank more shifts nobody else's.
"""

from __future__ import annotations

import hashlib
import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.documents.spec import Spec

_EULER = 0.5772156649015329
_LONGEST_TABLE = 100_000

Spread = Annotated[float, Field(strict=False, ge=0, le=10)]


def stream(seed: int, *identity: object) -> np.random.Generator:
    """The generator of an identity: Philox, a counter-based one, under a key of its own."""
    digest = hashlib.blake2b(repr((seed, *identity)).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


class Streams:
    """Many streams one after the other: the numbers of ``stream``, in a tenth of the time that new generators take.

    All calls return the same generator, so a call ends the stream of the one before.
    """

    def __init__(self) -> None:
        self._bits = np.random.Philox(0)
        self._state = self._bits.state
        self._generator = np.random.Generator(self._bits)

    def __call__(self, seed: int, *identity: object) -> np.random.Generator:
        """The generator, at the begin of this identity's stream."""
        digest = hashlib.blake2b(repr((seed, *identity)).encode(), digest_size=16).digest()
        self._state["state"]["key"][:] = np.frombuffer(digest, dtype="<u8")
        self._state["state"]["counter"][:] = 0
        self._state["buffer_pos"], self._state["has_uint32"] = 4, 0
        self._bits.state = self._state
        return self._generator


class _Spread(Spec):
    """A law of factors with one parameter, how far they spread; ``draw`` gives so many."""

    @property
    def neutral(self) -> bool:
        """Is every draw 1?"""
        return not any(value for name, value in self if name != "kind")


class Normal(_Spread):
    """1 + ``sigma`` z with a standard normal z, never below 0."""

    kind: Literal["normal"]
    sigma: Spread

    def draw(self, generator: np.random.Generator, count: int) -> Floats:
        return np.maximum(0.0, 1.0 + self.sigma * generator.standard_normal(count))


class Lognormal(_Spread):
    """exp(``sigma`` z - sigma^2 / 2): mean 1."""

    kind: Literal["lognormal"]
    sigma: Spread

    def draw(self, generator: np.random.Generator, count: int) -> Floats:
        return np.exp(self.sigma * generator.standard_normal(count) - self.sigma**2 / 2)


class Gumbel(_Spread):
    """1 + ``scale`` (g - 0.5772) with a standard Gumbel g, the law of maxima: mean 1; never below 0.

    The maximum of N of them is the same law, ``scale`` ln N later.
    """

    kind: Literal["gumbel"]
    scale: Spread

    def draw(self, generator: np.random.Generator, count: int) -> Floats:
        return np.maximum(0.0, 1.0 + self.scale * (generator.gumbel(size=count) - _EULER))


class Exponential(_Spread):
    """1 + ``scale`` (e - 1) with a standard exponential e: mean 1, and never below 1 - scale, so at most 1."""

    kind: Literal["exponential"]
    scale: Annotated[float, Field(ge=0, le=1)]

    def draw(self, generator: np.random.Generator, count: int) -> Floats:
        return 1.0 + self.scale * (generator.exponential(size=count) - 1.0)


class Histogram(Spec):
    """What was measured: ``values[i]`` with probability in proportion to ``weights[i]`` (left out: all alike).

    ``typical`` is what counts as 1: durations measured in microseconds with 250 as the typical one give factors.  In a
    scenario file ``file`` may stand for both: a CSV file, relative to it, with a value and a weight a line.  Nothing is
    interpolated.  A slowdown of 1.5 on one kernel in a thousand is ``values: [1, 1.5], weights: [999, 1]``.
    """

    kind: Literal["histogram"]
    values: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=1, max_length=_LONGEST_TABLE)]
    weights: tuple[Annotated[float, Field(ge=0)], ...] | None = None
    typical: Annotated[float, Field(gt=0)] = 1.0

    @model_validator(mode="after")
    def _as_many(self) -> Histogram:
        if self.weights is not None and len(self.weights) != len(self.values):
            raise InputError(f"{len(self.values)} values have {len(self.weights)} weights; give one to each")
        if self.weights is not None and not sum(self.weights) > 0:
            raise InputError("weights are all 0; at least one value must be possible")
        return self

    @property
    def neutral(self) -> bool:
        """Is every draw 1?"""
        return all(value == self.typical for value in self.values)

    def draw(self, generator: np.random.Generator, count: int) -> Floats:
        values = np.array(self.values) / self.typical
        if self.weights is None:
            return np.asarray(values[generator.integers(len(values), size=count)])
        steps = np.cumsum(self.weights)
        return np.asarray(values[np.searchsorted(steps, generator.random(count) * steps[-1], side="right")])


Factors = Annotated[Normal | Lognormal | Gumbel | Exponential | Histogram, Field(discriminator="kind")]
"""A law of factors; to add one, write a spec with ``neutral`` and ``draw`` and add it here."""


class LognormalLengths(Spec):
    """Documents of ``median`` tokens in the middle, exp(``sigma`` z) times that: a long tail, as texts have."""

    kind: Literal["lognormal"]
    median: Annotated[float, Field(ge=1, le=1e9)]
    sigma: Spread

    def draw(self, generator: np.random.Generator, count: int) -> Floats:
        """So many lengths in tokens, whole and at least 1."""
        return np.maximum(1.0, np.rint(self.median * np.exp(self.sigma * generator.standard_normal(count))))


class HistogramLengths(Histogram):
    """Lengths that were counted, in tokens: ``values`` with their ``weights``, as in ``Histogram``."""

    @model_validator(mode="after")
    def _whole(self) -> HistogramLengths:
        short = [value for value in self.values if value / self.typical < 1 or math.fmod(value / self.typical, 1)]
        if short:
            raise InputError(f"a document of {short[0]:g} tokens is none; lengths are whole numbers from 1")
        return self


Lengths = Annotated[LognormalLengths | HistogramLengths, Field(discriminator="kind")]
