"""What packing leaves: tokens that are real, and attention, of sequences with the documents in them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from simcluster.model.packing.lengths import LognormalLengths
from simcluster.model.packing.rules import Sequences


@dataclass(frozen=True, slots=True)
class Packed:
    """Sequences of a ``length``, in numbers: how many, their real tokens, the sums of squares of documents' lengths,
    and of what is filled of each sequence."""

    length: int
    sequences: int
    real: float
    squares: float
    filled: float

    @classmethod
    def of(cls, sequences: Sequences, length: int) -> Packed:
        """Those of some sequences."""
        sums = np.array([sum(each) for each in sequences])
        squares = sum(float(np.dot(each, each)) for each in sequences)
        return cls(length, len(sequences), float(sums.sum()), squares, float(np.dot(sums, sums)))

    @property
    def utilization(self) -> float:
        """Real tokens over allocated ones."""
        return self.real / (self.sequences * self.length) if self.sequences else 1.0

    @property
    def attention(self) -> float:
        """Core attention within documents, of that of whole sequences: sum(l^2) / (n s^2)."""
        return self._of_whole(self.squares)

    @property
    def attention_of_real(self) -> float:
        """The same where documents of a sequence see each other: real tokens come first, and see only real ones."""
        return self._of_whole(self.filled)

    def _of_whole(self, squares: float) -> float:
        return squares / (self.sequences * float(self.length) ** 2) if self.sequences else 1.0


WHOLE = Packed(1, 1, 1.0, 1.0, 1.0)
"""Sequences of one document each, which fills it."""


def mean_of_padded(law: LognormalLengths, length: int) -> float:
    """E[min(X, s)] of lognormal X, in tokens: what a sequence of one document holds."""
    sigma, mean = law.sigma, math.log(law.median)
    if not sigma:
        return min(law.median, float(length))
    above = (math.log(length) - mean) / sigma
    return float(math.exp(mean + sigma**2 / 2) * _phi(above - sigma) + length * (1 - _phi(above)))


def _phi(z: float) -> float:
    """The standard normal's distribution function."""
    return 0.5 * (1.0 + math.erf(z / math.sqrt(2.0)))
