"""Random factors, each drawn from a separate random stream.

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
from simcluster.documents.laws import Histogram, Spread
from simcluster.documents.spec import Spec

_EULER = 0.5772156649015329


def random_stream(seed: int, *identity: object) -> np.random.Generator:
    """Return the random generator of an identity: Philox, a counter-based one, with a key made from the identity."""
    digest = hashlib.blake2b(repr((seed, *identity)).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


class Streams:
    """Many streams one after the other: the numbers of ``random_stream``, in a tenth of the time of new generators.

    All calls return the same generator, so a call ends the previous stream.
    """

    def __init__(self) -> None:
        self._bits = np.random.Philox(0)
        self._state = self._bits.state
        self._generator = np.random.Generator(self._bits)

    def __call__(self, seed: int, *identity: object) -> np.random.Generator:
        """Return the generator, reset to the start of this identity's stream."""
        digest = hashlib.blake2b(repr((seed, *identity)).encode(), digest_size=16).digest()
        self._state["state"]["key"][:] = np.frombuffer(digest, dtype="<u8")
        self._state["state"]["counter"][:] = 0
        self._state["buffer_pos"], self._state["has_uint32"] = 4, 0
        self._bits.state = self._state
        return self._generator


def _normals(generator: np.random.Generator, mean: float, sigma: float, count: int) -> Floats:
    """Return normals as ``mean + sigma * z``; numpy's ``normal`` may round them differently."""
    if type(generator) is not np.random.Generator:  # one of ``quick_draws``
        return generator.normal(mean, sigma, count)
    return mean + sigma * generator.standard_normal(count)


class _FactorLaw(Spec):
    """A distribution of factors with one parameter, its spread; ``draw`` returns N factors."""

    @property
    def neutral(self) -> bool:
        """Return whether every draw is 1."""
        return not any(value for name, value in self if name != "kind")


class Normal(_FactorLaw):
    """Normal factors: 1 + ``sigma`` z with a standard normal z, never below 0."""

    kind: Literal["normal"]
    sigma: Spread
    """Standard deviation."""

    def draw(self, generator: np.random.Generator, count: int) -> Floats:
        """Return ``count`` random factors."""
        return np.maximum(0.0, _normals(generator, 1.0, self.sigma, count))


class Lognormal(_FactorLaw):
    """Lognormal factors with mean 1: exp(``sigma`` z - sigma^2 / 2)."""

    kind: Literal["lognormal"]
    sigma: Spread
    """Standard deviation of the logarithm."""

    def draw(self, generator: np.random.Generator, count: int) -> Floats:
        """Return ``count`` random factors."""
        normals = _normals(generator, -(self.sigma**2) / 2, self.sigma, count)
        return np.exp(normals, out=normals)


class Gumbel(_FactorLaw):
    """Gumbel factors with mean 1, the distribution of maxima: 1 + ``scale`` (g - 0.5772), never below 0.

    The maximum of N of them has the same distribution, ``scale`` ln N later.
    """

    kind: Literal["gumbel"]
    scale: Spread
    """Spread."""

    def draw(self, generator: np.random.Generator, count: int) -> Floats:
        """Return ``count`` random factors."""
        return np.maximum(0.0, 1.0 + self.scale * (generator.gumbel(size=count) - _EULER))


class Exponential(_FactorLaw):
    """Exponential factors with mean 1: 1 + ``scale`` (e - 1), never below 1 - scale, with scale at most 1."""

    kind: Literal["exponential"]
    scale: Annotated[float, Field(ge=0, le=1)]
    """Spread."""

    def draw(self, generator: np.random.Generator, count: int) -> Floats:
        """Return ``count`` random factors."""
        return 1.0 + self.scale * (generator.exponential(size=count) - 1.0)


Factors = Annotated[Normal | Lognormal | Gumbel | Exponential | Histogram, Field(discriminator="kind")]
"""A law of factors; to add one, write a spec with ``neutral`` and ``draw`` and add it here."""
