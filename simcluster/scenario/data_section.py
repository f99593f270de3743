"""The scenario sections ``data`` (training data and loader) and ``measured`` (a measured step time)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from simcluster.base.arrays import Floats
from simcluster.base.counts import parse_count
from simcluster.base.errors import InputError
from simcluster.base.units import Seconds, format_seconds
from simcluster.documents.base_spec import NUMBER_OR_TEXT, Spec
from simcluster.faults import FaultSpec, SequenceLengths
from simcluster.faults.fault_spec import BatchSizes
from simcluster.faults.random_factors import Factors, RandomStreams
from simcluster.faults.sequence_lengths import Packing
from simcluster.faults.targets import Number
from simcluster.model.packing import UNPACKED, Lengths, PackingStatistics
from simcluster.scenario.run_section import Tokens

_TOKENS_A_SECOND = re.compile(r"\s*(.*?)\s*tokens?\s*/\s*s\s*")
_STREAMS = RandomStreams()


def _parse_rate(value: object) -> float:
    text = value
    if isinstance(value, str):
        found = _TOKENS_A_SECOND.fullmatch(value)
        text = re.sub(r"\s+", "", found[1] if found else value)
    return parse_count(text, "rate")


TokensPerSecond = Annotated[
    float,
    BeforeValidator(_parse_rate),
    PlainSerializer(lambda rate: f"{rate!r} tokens/s", when_used="json"),
    NUMBER_OR_TEXT,
]


class LoaderSpec(Spec):
    """Data loader of each host: number of workers, batches loaded ahead, and load time (by ``batch`` or ``rate``)."""

    batch: Seconds | None = None
    """Time that one worker takes to load its host's data of one step; set this or `rate`, not both."""
    rate: TokensPerSecond | None = None
    """Tokens that one worker loads per second; set this or `batch`, not both."""
    workers: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 1
    """Number of loader processes per host."""
    prefetch: Annotated[int, Field(strict=True, ge=0, le=10_000)] = 2
    """Number of batches that are loaded ahead of use; 0: every step waits for its batch."""
    jitter: Factors | None = None
    """Distribution of random factors on the load time of each batch on each host."""

    @model_validator(mode="after")
    def _check_one_rate(self) -> LoaderSpec:
        given = [name for name in ("batch", "rate") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InputError(
                "a worker's load time is required: set either 'batch' (0.8 s) or 'rate' (2 M tokens/s); "
                f"got {' and '.join(given) or 'none'}"
            )
        return self

    @property
    def is_random(self) -> bool:
        """Whether the loader's batch times are random."""
        return self.jitter is not None and not self.jitter.is_neutral

    def batch_seconds(self, tokens: float) -> float:
        """Return the time (s) that one worker takes to load a batch of ``tokens`` tokens."""
        return tokens / self.rate if self.rate is not None else float(self.batch or 0.0)

    def load_times(self, tokens: Floats, count: int, seed: int) -> Floats:
        """Return the load times (s) of N batches on each host, as an array [host, batch]."""
        mean = np.array([self.batch_seconds(each) for each in tokens.tolist()])
        found = np.repeat(mean[:, None], count, axis=1)
        if self.jitter is not None and self.is_random:
            for host, own in enumerate(found):
                own *= self.jitter.draw(_STREAMS(seed, "loader", host), count)
        return found

    def describe(self) -> str:
        """Describe the loader in one line, as in "loader 2 workers, each 0.8 s per batch, 2 batch(es) ahead"."""
        pace = f"{self.rate:,.0f} tokens/s" if self.rate else f"{format_seconds(float(self.batch or 0.0))} per batch"
        ahead = f"{self.prefetch or 'no'} batch(es) ahead"
        return f"loader {self.workers} worker{'s' * (self.workers > 1)}, each {pace}, {ahead}"


class Data(Spec):
    """Training data: document lengths, their packing into sequences, and the data loader."""

    documents: Lengths | None = None
    """Distribution of document lengths, in tokens; default: every sequence is one document."""
    packing: Packing = "cut"
    """Rule that packs documents into sequences: cut (documents run on into the next sequence), in_order (each sequence
    cuts its last document), pad, first_fit, first_fit_decreasing, or balanced (even attention work)."""
    mask: Literal["document", "none"] = "document"
    """Attention mask: within each document (document), or over the whole packed sequence (none)."""
    unique: Tokens | None = None
    """Number of tokens in the data set; a run that trains on more tokens repeats them (epochs)."""
    seed: Number = 0
    """Random seed of document lengths, in addition to the scenario's seed."""
    loader: LoaderSpec | None = None
    """The data loader of each host; default: batches are always ready."""

    @model_validator(mode="after")
    def _check_documents(self) -> Data:
        fields = type(self).model_fields
        idle = [name for name in ("packing", "mask", "seed") if getattr(self, name) != fields[name].default]
        if idle and self.documents is None:
            raise InputError(f"'{idle[0]}' has no effect without 'documents'; set 'documents', or remove '{idle[0]}'")
        return self

    @property
    def without_jitter(self) -> Data:
        """The section with the random part of load times removed."""
        loader = self.loader and self.loader.model_copy(update={"jitter": None})
        return self.model_copy(update={"loader": loader})

    @property
    def attention_lengths(self) -> SequenceLengths | None:
        """Lengths of the spans over which attention is computed; None if attention spans whole sequences."""
        return {"document": self.document_lengths, "none": None}[self.mask]

    @property
    def document_lengths(self) -> SequenceLengths | None:
        """Distribution of document lengths and their packing, regardless of the attention mask."""
        if self.documents is None:
            return None
        given = {"documents": self.documents, "packing": self.packing, "seed": self.seed}
        return SequenceLengths.model_validate({"kind": "sequence_lengths", **given})

    def with_document_fault(self, faults: Sequence[FaultSpec]) -> tuple[FaultSpec, ...]:
        """Return the faults plus a fault for the uneven documents of this section, unless the list has such a fault."""
        mine = self.attention_lengths
        if mine is None or any(
            isinstance(fault, SequenceLengths) and have_equal_documents(fault, mine) for fault in faults
        ):
            return tuple(faults)
        return (*faults, mine)

    def packing_statistics(self, seed: int, batch: BatchSizes, dp: int) -> PackingStatistics:
        """Return statistics of the packed sequences of all steps, such as the share of tokens that are not padding."""
        count = batch.microbatches * batch.micro_batch * dp
        if self.document_lengths is None:
            return UNPACKED
        rows = [self.document_lengths.document_lengths(seed, step, count, batch.length) for step in range(batch.steps)]
        return PackingStatistics.from_sequences([row for rows_of_step in rows for row in rows_of_step], batch.length)


def have_equal_documents(one: SequenceLengths, other: SequenceLengths) -> bool:
    """Return whether two distributions draw the same documents, even if they spread them differently over ranks."""
    packings = {each.packing for each in (one, other)}
    alike = len(packings) == 1 or packings == {"balanced", "in_order"}
    return alike and (one.documents, one.seed) == (other.documents, other.seed)


_NAMED = 3
"""Most changes that a sentence names."""


class Measured(Spec):
    """Measured step time or throughput of this scenario, shown next to the prediction; predictions ignore it."""

    step_time: Seconds | None = None
    """Measured time of one step; instead of tokens_per_s."""
    tokens_per_s: (
        Annotated[float, BeforeValidator(lambda value: parse_count(value, "tokens_per_s")), NUMBER_OR_TEXT] | None
    ) = None
    """Measured tokens per second of the whole job; instead of step_time."""
    source: str = ""
    changed: tuple[str, ...] | None = None
    """Keys that were overridden and differ from the measured run; if there are any, the prediction is not compared with
    it."""

    @model_validator(mode="after")
    def _check_one_value(self) -> Self:
        if (self.step_time is None) == (self.tokens_per_s is None):
            both = "both are set" if self.step_time is not None else "neither is set"
            raise InputError(f'set exactly one of step_time (as in "7.5 s") and tokens_per_s (of all GPUs); {both}')
        if self.step_time == 0:
            raise InputError("step_time must be longer than 0 s; write the measured duration, or remove step_time")
        return self

    def step_seconds(self, tokens: int) -> float:
        """Return the measured step time (s) for a step of ``tokens`` tokens."""
        return self.step_time if self.step_time is not None else tokens / (self.tokens_per_s or 1.0)

    def comparison_obstacle(self) -> str:
        """Return why the measurement cannot be compared with the simulation; "" if a comparison is possible.

        "13.75 s (arXiv:2205.05198 table 5) is not compared: measured before a change of pipeline.schedule".
        """
        if not self.changed:
            return ""
        what = f"{self.tokens_per_s:,.0f} tokens/s" if self.step_time is None else format_seconds(self.step_time)
        more = f" and {len(self.changed) - _NAMED} more" if len(self.changed) > _NAMED else ""
        source = f" ({self.source})" if self.source else ""
        return f"{what}{source} is not compared: measured before a change of {', '.join(self.changed[:_NAMED])}{more}"
