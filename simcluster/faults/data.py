"""Work that is uneven because the data are: documents of different lengths, packed.

Attention inside a document costs in proportion to the square of its length, everything else to the tokens: microbatches
with equally many tokens take different times (MODELLING.md G.3; ByteDance, arXiv:2505.05713).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, ClassVar, Literal, Self

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.documents.diagnostics import Complaint
from simcluster.faults.draws import Lengths, stream
from simcluster.faults.spec import Batch, FaultSpec
from simcluster.faults.where import Number

_AT_ONCE = 64  # lengths drawn together


class SequenceLengths(FaultSpec):
    """Sequences packed with documents, whose lengths are drawn from ``documents``.

    Documents fill each sequence of the batch up to ``model.sequence_length`` tokens; the last is cut there.  The core
    attention of a microbatch then takes sum(length^2) / sum(sequence_length^2) of what one document to each sequence
    takes, which is what planning counts; other kernels, memory and traffic stay.  MFU and HFU count the attention
    that there is.  Sequence n of the batch is the same however the job is split.

    ``packing``: ``in_order`` as drawn; ``balanced`` deals the documents of a step out so that the sums of squares of
    the replicas come out alike, and then those of their microbatches: the longest first, each to where the sum is
    lowest and room is left; ``even`` gives every microbatch of a step the mean.  ``seed`` as for jitter.
    """

    EXAMPLE: ClassVar = {"kind": "sequence_lengths", "documents": {"kind": "lognormal", "median": 40, "sigma": 1}}
    NEUTRAL: ClassVar = {"kind": "sequence_lengths", "documents": {"kind": "histogram", "values": [1e9]}}
    ONCE: ClassVar = "the data have one law of lengths"

    kind: Literal["sequence_lengths"]
    documents: Lengths
    packing: Literal["in_order", "balanced", "even"] = "in_order"
    seed: Number | None = None

    def attention(self, seed: int, batch: Batch, dp: int) -> Floats:
        """What the core attention of microbatches takes, [step, replica, microbatch]; 1 is one document a sequence."""
        counts = {"microbatches": batch.microbatches, "micro_batch": batch.micro_batch, "length": batch.length}
        return np.stack([loads(self, seed=seed, step=step, dp=dp, **counts) for step in range(batch.steps)])

    def complaints(self, scenario: Any) -> Iterator[Complaint]:
        """Attention does only what documents need."""
        if scenario.training.attention != "fused":
            what = "unfused attention works on the whole square, whatever is packed"
            yield (), f"{what}; set training.attention to fused, or leave sequence_lengths out"

    def without(self) -> Self:
        """The same documents without imbalance."""
        return self.model_copy(update={"packing": "even"})

    def remedy(self) -> tuple[str, Self] | None:
        """Documents are dealt out evenly."""
        balanced = self.model_copy(update={"packing": "balanced"})
        return ("redistribute the sequences (packing: balanced)", balanced) if self.packing == "in_order" else None


@lru_cache(maxsize=64)
def loads(
    chosen: SequenceLengths, *, seed: int, step: int, dp: int, microbatches: int, micro_batch: int, length: int
) -> Floats:
    """What the core attention of each microbatch takes in a step, [replica, microbatch]; 1 is one document a sequence.

    Sequence n of the batch goes to microbatch n // (dp x micro_batch) of replica n // micro_batch % dp, as
    data-parallel samplers deal them out.  The array is the same one for the same step: it cannot be written to.
    """
    sequences = [
        packed(chosen.documents, length, stream(seed, "sequence", chosen.seed, step, number))
        for number in range(microbatches * dp * micro_batch)
    ]
    shape = (microbatches, dp, micro_batch)
    if chosen.packing == "balanced":
        squares = balanced(np.concatenate(sequences), dp, microbatches, micro_batch * length).T
    else:
        squares = np.array([float(np.dot(each, each)) for each in sequences]).reshape(shape).sum(axis=2)
    found = (squares / (micro_batch * float(length) ** 2)).T
    found = np.full_like(found, found.mean()) if chosen.packing == "even" else found
    found.setflags(write=False)
    return found


def packed(law: Lengths, length: int, generator: np.random.Generator) -> Floats:
    """Documents of a sequence of so many tokens, in order; the last is cut."""
    found, filled = [], 0.0
    for document in _drawn(law, generator):
        found.append(min(document, length - filled))
        filled += document
        if filled >= length:
            return np.array(found)
    raise AssertionError


def _drawn(law: Lengths, generator: np.random.Generator) -> Iterator[float]:
    while True:
        yield from law.draw(generator, _AT_ONCE).tolist()


def balanced(documents: Floats, replicas: int, microbatches: int, room: int) -> Floats:
    """Sums of squares of documents dealt out greedily, [replica, microbatch], each with room for so many tokens.

    The longest first, each to the replica with the smallest sum that has room for it, and there to the microbatch with
    the smallest; what fits nowhere is cut, into those with most room.
    """
    squares, left = np.zeros((replicas, microbatches)), np.full((replicas, microbatches), float(room))
    for document in np.sort(documents)[::-1].tolist():
        rest = document
        while rest > 0:
            fits = left >= rest
            if fits.any():
                replica = int(np.argmin(np.where(fits.any(axis=1), squares.sum(axis=1), np.inf)))
                place = replica, int(np.argmin(np.where(fits[replica], squares[replica], np.inf)))
            else:
                first, second = np.unravel_index(int(np.argmax(left)), left.shape)
                place = int(first), int(second)
            part = min(rest, float(left[place]))
            squares[place] += part**2
            left[place] -= part
            rest -= part
    return squares
