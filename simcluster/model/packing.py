"""Distributions of document lengths, and rules for packing documents into sequences.

A rule takes documents in order (tokens of each), the ``length`` of a sequence and the maximum number of sequences
(``most``), and returns the documents of each sequence, or of as many documents from the front as fit. The rest of a
sequence is padded. To add a rule: a function, and its name in PACKING; to add a distribution: a spec with ``draw``, in
``Lengths``. Tests of the registries are inherited.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import Field, model_validator

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.documents.base_spec import Spec
from simcluster.documents.histogram import Histogram, Spread

Sequences: TypeAlias = Sequence[Sequence[float]]
"""By sequence, the tokens of each document (or piece of one) in it; each sums to the length at most."""

Rule: TypeAlias = Callable[[Floats, int, int], Sequences]


def pad_documents(documents: Floats, length: int, most: int) -> Sequences:
    """Put each document into its own sequence, and drop tokens beyond the sequence length."""
    return [[min(each, float(length))] for each in documents[:most].tolist()]


def cut_documents(documents: Floats, length: int, most: int) -> Sequences:
    """Concatenate all documents, and cut the result into sequences of equal length.

    The pretraining data of GPT-2 and Llama are packed like this.
    """
    ends = np.minimum(np.cumsum(documents), float(length) * most)
    if not len(ends):
        return []
    cuts = np.unique(np.concatenate([ends, np.arange(length, ends[-1], length)]))
    begins = np.concatenate([[0.0], cuts[:-1]])
    found: list[list[float]] = [[] for _ in range(math.ceil(ends[-1] / length))]
    for begin, end in zip(begins.tolist(), cuts.tolist(), strict=True):
        found[int(begin // length)].append(end - begin)
    return found


def first_fit(documents: Floats, length: int, most: int) -> Sequences:
    """Put each document into the first sequence that has room for it.

    One that is too long fills whole sequences first, as Ding et al. do (arXiv:2404.10830).
    """
    found: list[list[float]] = []
    left = np.zeros(most if most < len(documents) else _count_sequences_needed(documents, length))
    for document in documents.tolist():
        whole, rest = divmod(document, length)
        place = int(np.argmax(left[: len(found)] >= rest)) if rest and found else 0
        fits = not rest or (len(found) > 0 and left[place] >= rest)
        if len(found) + whole + (not fits) > most:
            break
        found += [[float(length)] for _ in range(int(whole))]
        if rest and not fits:
            place = len(found)
            left[place] = length
            found.append([])
        if rest:
            found[place].append(rest)
            left[place] -= rest
    return found


def first_fit_decreasing(documents: Floats, length: int, most: int) -> Sequences:
    """Put documents, the longest first, into the first sequence that has room for them.

    It takes at most 11/9 of the fewest sequences (Johnson 1973). With ``most``, the number of documents from the front
    is lowered by the number that were too many, until they fit.
    """
    count = int(np.searchsorted(np.cumsum(documents), float(length) * most, side="right"))
    while True:
        rows = first_fit(-np.sort(-documents[:count]), length, _count_sequences_needed(documents, length))
        if len(rows) <= most:
            return rows
        count -= sum(len(each) for each in rows[most:])


def balance_documents(documents: Floats, length: int, most: int) -> Sequences:
    """Put documents, the longest first, into the sequence with room and the lowest sum of squared lengths.

    A document that fits nowhere is cut, into the sequences with most room.
    """
    ends = np.minimum(np.cumsum(documents), float(length) * most)
    pieces = np.diff(ends, prepend=0.0)
    return assign_documents(pieces[pieces > 0], 1, math.ceil(ends[-1] / length), length)[0] if len(ends) else []


PACKING: dict[str, Rule] = {
    "pad": pad_documents,
    "cut": cut_documents,
    "first_fit": first_fit,
    "first_fit_decreasing": first_fit_decreasing,
    "balanced": balance_documents,
}


def assign_documents(documents: Floats, replicas: int, microbatches: int, room: int) -> Sequence[Sequences]:
    """Assign documents greedily to microbatches of all replicas; a microbatch has room for ``room`` tokens.

    The longest comes first, to the replica with the smallest sum of squares that has room for it, and there to the
    microbatch with the smallest. A document that fits nowhere is cut, into those with most room.
    """
    squares, left = np.zeros((replicas, microbatches)), np.full((replicas, microbatches), float(room))
    found: list[list[list[float]]] = [[[] for _ in range(microbatches)] for _ in range(replicas)]
    for document in np.sort(documents)[::-1].tolist():
        rest = document
        while rest > 0:
            fits = left >= rest
            if fits.any():
                replica = int(np.argmin(np.where(fits.any(axis=1), squares.sum(axis=1), np.inf)))
                place = replica, int(np.argmin(np.where(fits[replica], squares[replica], np.inf)))
            elif rest > room and (empty := np.flatnonzero(left == room)).size:
                whole = empty[: math.ceil(rest / room) - 1]  # have most room, in the order in which they are found
                for replica, microbatch in np.stack(np.divmod(whole, microbatches), axis=1).tolist():
                    found[replica][microbatch].append(float(room))
                squares.flat[whole] += float(room) ** 2
                left.flat[whole] = 0.0
                rest -= room * len(whole)
                continue
            else:
                first, second = np.unravel_index(int(np.argmax(left)), left.shape)
                place = int(first), int(second)
            part = min(rest, float(left[place]))
            squares[place] += part**2
            found[place[0]][place[1]].append(part)
            left[place] -= part
            rest -= part
    return found


def _count_sequences_needed(documents: Floats, length: int) -> int:
    return int(np.ceil(documents / length).sum())


class LognormalLengths(Spec):
    """Lognormal distribution of document lengths, with the long tail of real texts."""

    kind: Literal["lognormal"]
    median: Annotated[float, Field(ge=1, le=1e9)]
    """Median document length, in tokens."""
    sigma: Spread
    """Standard deviation of the logarithm of the document length."""

    def draw(self, generator: np.random.Generator, count: int) -> Floats:
        """Return ``count`` random document lengths in whole tokens, each at least 1."""
        return np.maximum(1.0, np.rint(self.median * np.exp(self.sigma * generator.standard_normal(count))))


class HistogramLengths(Histogram):
    """Measured histogram of document lengths: ``values`` in tokens, and their ``weights``."""

    @model_validator(mode="after")
    def _check_whole_numbers(self) -> HistogramLengths:
        short = [value for value in self.values if value / self.typical < 1 or math.fmod(value / self.typical, 1)]
        if short:
            raise InputError(
                f"a document cannot have {short[0]:g} tokens; lengths must be whole numbers from 1: raise the "
                f"median or the values"
            )
        return self


Lengths = Annotated[LognormalLengths | HistogramLengths, Field(discriminator="kind")]
"""A distribution of document lengths, in tokens."""


@dataclass(frozen=True, slots=True)
class PackingStatistics:
    """Statistics of packed sequences of ``length`` tokens: padding and attention work.

    They are the number of sequences, their real tokens, the sum of squares of documents' lengths, and that of the
    filled part of each sequence.
    """

    length: int
    sequences: int
    real: float
    squares: float
    filled: float

    @classmethod
    def from_sequences(cls, sequences: Sequences, length: int) -> PackingStatistics:
        """Compute the statistics of sequences, each a list of document lengths."""
        sums = np.array([sum(each) for each in sequences])
        squares = sum(float(np.dot(each, each)) for each in sequences)
        return cls(length, len(sequences), float(sums.sum()), squares, float(np.dot(sums, sums)))

    @property
    def utilization(self) -> float:
        """Share of the tokens of all sequences that are not padding."""
        return self.real / (self.sequences * self.length) if self.sequences else 1.0

    @property
    def attention(self) -> float:
        """Core attention work within documents, relative to unpacked whole sequences: sum(l^2) / (n s^2)."""
        return self._relative_to_whole_sequences(self.squares)

    @property
    def unmasked_attention(self) -> float:
        """Core attention work of real tokens if documents attend to each other, relative to whole sequences."""
        return self._relative_to_whole_sequences(self.filled)

    def _relative_to_whole_sequences(self, squares: float) -> float:
        return squares / (self.sequences * float(self.length) ** 2) if self.sequences else 1.0


UNPACKED = PackingStatistics(1, 1, 1.0, 1.0, 1.0)
"""Sequences that one document each fills."""


def mean_padded_tokens(law: LognormalLengths, length: int) -> float:
    """Return the mean number of real tokens in a sequence padded from one document of lognormal length."""
    sigma, mean = law.sigma, math.log(law.median)
    if not sigma:
        return min(law.median, float(length))
    above = (math.log(length) - mean) / sigma
    return float(math.exp(mean + sigma**2 / 2) * _normal_cdf(above - sigma) + length * (1 - _normal_cdf(above)))


def _normal_cdf(z: float) -> float:
    return 0.5 * (1.0 + math.erf(z / math.sqrt(2.0)))
