"""Distributions of random factors, and independent streams of random numbers.

A stream belongs to a seed, a fault and an identity (a rank's pass of a microbatch, a sequence of the batch), whatever
else is drawn and in which order. So runs that differ in one thing have all other draws in common (common random
numbers), and one more rank does not shift the draws of others.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from simcluster.base.arrays import Floats
from simcluster.documents.base_spec import Spec
from simcluster.documents.histogram import Histogram, Spread

_EULER = 0.5772156649015329


def random_stream(seed: int, *identity: object) -> np.random.Generator:
    """Return the random generator (Philox) of a seed and an identity; equal arguments give equal numbers."""
    digest = hashlib.blake2b(repr((seed, *identity)).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


class RandomStreams:
    """Reusable generator for many random streams: same numbers as ``random_stream``, ten times faster.

    All calls return the same generator, so a call ends the previous stream.
    """

    def __init__(self) -> None:
        self._bits = np.random.Philox(0)
        self._state = self._bits.state
        self._generator = np.random.Generator(self._bits)

    def __call__(self, seed: int, *identity: object) -> np.random.Generator:
        """Return the generator at the start of the random stream of this seed and identity."""
        digest = hashlib.blake2b(repr((seed, *identity)).encode(), digest_size=16).digest()
        self._state["state"]["key"][:] = np.frombuffer(digest, dtype="<u8")
        self._state["state"]["counter"][:] = 0
        self._state["buffer_pos"], self._state["has_uint32"] = 4, 0
        self._bits.state = self._state
        return self._generator


def _draw_normals(generator: np.random.Generator, mean: float, sigma: float, count: int) -> Floats:
    """Return ``count`` normal numbers, computed as ``mean + sigma * z``; numpy's ``normal`` may round otherwise."""
    if type(generator) is not np.random.Generator:  # one of ``fast_streams``
        return generator.normal(mean, sigma, count)
    return mean + sigma * generator.standard_normal(count)


class _FactorDistribution(Spec):
    """Distribution of random factors with one parameter, the spread."""

    @property
    def is_neutral(self) -> bool:
        """Return whether all factors are 1, since the spread is 0."""
        return not any(value for name, value in self if name != "kind")


class NormalFactors(_FactorDistribution):
    """Normally distributed factors: 1 + ``sigma`` z, z standard normal; negative factors become 0."""

    kind: Literal["normal"]
    sigma: Spread
    """Standard deviation of the factors."""

    def draw(self, generator: np.random.Generator, count: int) -> Floats:
        """Return ``count`` random factors."""
        return np.maximum(0.0, _draw_normals(generator, 1.0, self.sigma, count))


class LognormalFactors(_FactorDistribution):
    """Lognormal factors with mean 1: exp(``sigma`` z - sigma^2 / 2), z standard normal."""

    kind: Literal["lognormal"]
    sigma: Spread
    """Standard deviation of the logarithm of the factors."""

    def draw(self, generator: np.random.Generator, count: int) -> Floats:
        """Return ``count`` random factors."""
        normals = _draw_normals(generator, -(self.sigma**2) / 2, self.sigma, count)
        return np.exp(normals, out=normals)


class GumbelFactors(_FactorDistribution):
    """Gumbel-distributed factors with mean 1, never below 0: 1 + ``scale`` (g - 0.5772), g standard Gumbel.

    The maximum of N of them has the same distribution, ``scale`` ln N later.
    """

    kind: Literal["gumbel"]
    scale: Spread
    """Spread of the factors; their standard deviation is 1.28 x scale."""

    def draw(self, generator: np.random.Generator, count: int) -> Floats:
        """Return ``count`` random factors."""
        return np.maximum(0.0, 1.0 + self.scale * (generator.gumbel(size=count) - _EULER))


class ExponentialFactors(_FactorDistribution):
    """Factors 1 + ``scale`` (x - 1), x exponential: their mean is 1, their minimum 1 - scale."""

    kind: Literal["exponential"]
    scale: Annotated[float, Field(ge=0, le=1)]
    """Spread of the factors, 0 to 1, which is their standard deviation."""

    def draw(self, generator: np.random.Generator, count: int) -> Floats:
        """Return ``count`` random factors."""
        return 1.0 + self.scale * (generator.exponential(size=count) - 1.0)


_AnyFactors = NormalFactors | LognormalFactors | GumbelFactors | ExponentialFactors | Histogram
Factors = Annotated[_AnyFactors, Field(discriminator="kind")]
"""A distribution of factors; to add one, write a spec with ``is_neutral`` and ``draw`` and add it here."""
