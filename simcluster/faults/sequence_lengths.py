"""Fault of uneven data: sequences are packed from documents of different lengths.

Attention inside a document costs in proportion to the square of its length, everything else to the tokens: microbatches
with equally many tokens take different times (MODELLING.md G.3; ByteDance, arXiv:2505.05713).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import StrictBool, model_validator

from simcluster.base.arrays import Floats
from simcluster.documents.diagnostics import KeyProblem
from simcluster.documents.field_annotations import SchemaAlternatives
from simcluster.faults.fault_spec import BatchSizes, FaultSpec
from simcluster.faults.random_factors import random_stream
from simcluster.faults.targets import Number
from simcluster.model.packing import PACKING, Lengths, Sequences, assign_documents

_AT_ONCE = 64  # lengths drawn together


Packing = Literal["in_order", "pad", "cut", "first_fit", "first_fit_decreasing", "balanced"]


class SequenceLengths(FaultSpec):
    """Fault: sequences are packed from documents of random lengths.

    The core attention of a microbatch then takes sum(length^2) / sum(sequence_length^2) of what one document per
    sequence takes, which is what planning counts; other kernels, memory and traffic stay. MFU and HFU count only the
    attention within documents. Sequence n of the batch is the same however the job is split. The ``data`` section of a
    scenario means the same and counts real tokens, too.
    """

    EXAMPLE: ClassVar = {"kind": "sequence_lengths", "documents": {"kind": "lognormal", "median": 40, "sigma": 1}}
    NEUTRAL: ClassVar = {"kind": "sequence_lengths", "documents": {"kind": "histogram", "values": [1e9]}}
    ONCE: ClassVar = "the data have one distribution of lengths"

    kind: Literal["sequence_lengths"]
    documents: Lengths
    """Distribution of document lengths, in tokens."""
    packing: Annotated[Packing, SchemaAlternatives(lambda: (..., ("even",)))] = "in_order"  # as it was written once
    """Rule that packs documents into sequences: in_order fills each sequence and cuts its last document; balanced gives
    replicas, then microbatches, equal attention work; pad, cut, first_fit and first_fit_decreasing pack the documents
    of a step and shuffle the sequences."""
    even: StrictBool = False
    """Whether all microbatches of a step have equal attention work, the mean of the step."""
    seed: Number | None = None

    @model_validator(mode="before")
    @classmethod
    def _convert_even_packing(cls, document: Any) -> Any:
        if isinstance(document, Mapping) and document.get("packing") == "even":
            return {**document, "packing": "in_order", "even": True}
        return document

    def attention_factors(self, seed: int, batch: BatchSizes, dp: int) -> Floats:
        """Return each microbatch's core attention work; 1: one document per sequence."""
        counts = {"microbatches": batch.microbatches, "micro_batch": batch.micro_batch, "length": batch.length}
        return np.stack([microbatch_loads(self, seed=seed, step=step, dp=dp, **counts) for step in range(batch.steps)])

    def document_lengths(self, seed: int, step: int, count: int, length: int) -> Sequences:
        """Return the document lengths of each sequence of a step, in batch order."""
        return _draw_sequences(self.documents, self.packing, (seed, self.seed, step), count, length)

    def complaints(self, scenario: Any) -> Iterator[KeyProblem]:
        """Yield an error if attention is unfused, since its work does not depend on document lengths."""
        if scenario.training.attention != "fused":
            what = "unfused attention works on the whole square, whatever is packed"
            instead = "remove sequence_lengths" if scenario.data is None else "data.mask to none"
            yield (), f"{what}; set training.attention to fused, or {instead}"

    def replacement_if_removed(self) -> Self:
        """Return this fault with equal attention work in all microbatches of a step: what stays when it is removed."""
        return self.model_copy(
            update={"packing": "in_order" if self.packing == "balanced" else self.packing, "even": True}
        )

    def remedy(self) -> tuple[str, Self] | None:
        if self.even or self.packing not in ("in_order", "cut"):
            return None
        return "redistribute the sequences (packing: balanced)", self.model_copy(update={"packing": "balanced"})


@lru_cache(maxsize=64)
def microbatch_loads(
    fault: SequenceLengths, *, seed: int, step: int, dp: int, microbatches: int, micro_batch: int, length: int
) -> Floats:
    """Return the core attention work of each microbatch of a step: [replica, microbatch].

    1 is the load of one document per sequence. Sequence n of the batch goes to microbatch n // (dp x micro_batch) of
    replica n // micro_batch % dp, as data-parallel samplers deal them out. The array is read-only and shared between
    calls for the same step.
    """
    sequences = fault.document_lengths(seed, step, microbatches * dp * micro_batch, length)
    if fault.packing == "balanced":
        rows = assign_documents(np.concatenate(sequences), dp, microbatches, micro_batch * length)
        squares = np.array([[float(np.dot(each, each)) for each in row] for row in rows]).T
    else:
        of_each = np.array([float(np.dot(each, each)) for each in sequences])
        squares = of_each.reshape(microbatches, dp, micro_batch).sum(axis=2)
    found = (squares / (micro_batch * float(length) ** 2)).T
    found = np.full_like(found, found.mean()) if fault.even else found
    found.setflags(write=False)
    return found


@lru_cache(maxsize=8)
def _draw_sequences(
    law: Lengths, packing: Packing, seeds: tuple[int, int | None, int], count: int, length: int
) -> Sequences:
    """Return random document lengths per sequence; ``seeds``: (scenario's seed, fault's seed, step).

    They are cached, since attention and real tokens are both counted from them: a batch of 2,048 takes 20 ms.
    """
    seed, own, step = seeds
    if packing in ("in_order", "balanced"):
        streams = (random_stream(seed, "sequence", own, step, number) for number in range(count))
        return tuple(tuple(pack_sequence(law, length, each).tolist()) for each in streams)
    generator = random_stream(seed, "documents", own, step)
    rows = PACKING[packing](_draw_documents(law, generator, count, length), length, count)
    shuffled = generator.permutation(count).tolist()
    return tuple(tuple(rows[place]) if place < len(rows) else () for place in shuffled)


def _draw_documents(law: Lengths, generator: np.random.Generator, count: int, length: int) -> Floats:
    found = np.empty(0)
    while np.minimum(found, length).sum() < count * length:
        found = np.concatenate([found, law.draw(generator, max(_AT_ONCE, count))])
    return found


def pack_sequence(law: Lengths, length: int, generator: np.random.Generator) -> Floats:
    """Draw the document lengths of a sequence of ``length`` tokens; the last document is cut to fit."""
    found, filled = [], 0.0
    for document in _generate_lengths(law, generator):
        found.append(min(document, length - filled))
        filled += document
        if filled >= length:
            return np.array(found)
    raise AssertionError


def _generate_lengths(law: Lengths, generator: np.random.Generator) -> Iterator[float]:
    while True:
        yield from law.draw(generator, _AT_ONCE).tolist()
