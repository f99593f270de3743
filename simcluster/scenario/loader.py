"""The ``loader`` of a scenario's ``data``: what loads the batches of a host, and how long that takes."""

from __future__ import annotations

import re
from typing import Annotated

import numpy as np
from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from simcluster.base.arrays import Floats
from simcluster.base.counts import parse_count
from simcluster.base.errors import InputError
from simcluster.base.units import Seconds, format_seconds
from simcluster.documents.spec import NUMBER_OR_TEXT, Spec
from simcluster.faults.draws import Factors, Streams

_TOKENS_A_SECOND = re.compile(r"\s*(.*?)\s*tokens?\s*/\s*s\s*")
_STREAMS = Streams()


def _rate(value: object) -> float:
    """ "2 M tokens/s" is 2e6; so is "2M tokens/s", and the number alone."""
    text = value
    if isinstance(value, str):
        found = _TOKENS_A_SECOND.fullmatch(value)
        text = re.sub(r"\s+", "", found[1] if found else value)
    return parse_count(text, "rate")


TokensPerSecond = Annotated[
    float,
    BeforeValidator(_rate),
    PlainSerializer(lambda rate: f"{rate!r} tokens/s", when_used="json"),
    NUMBER_OR_TEXT,
]


class LoaderSpec(Spec):
    """The data loader of every host: ``workers`` processes and a queue of ``prefetch`` batches.

    A batch is what the ranks of a host need for a step.  How long one worker takes for it: ``batch`` says so, or
    ``rate``, in tokens that a worker loads in a second; one of the two.  ``jitter`` is a law of factors, drawn for each
    batch of each host.  With ``prefetch: 0`` nothing is loaded ahead: every step waits for its batch.
    """

    batch: Seconds | None = None
    rate: TokensPerSecond | None = None
    workers: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 1
    prefetch: Annotated[int, Field(strict=True, ge=0, le=10_000)] = 2
    jitter: Factors | None = None

    @model_validator(mode="after")
    def _one_time(self) -> LoaderSpec:
        given = [name for name in ("batch", "rate") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InputError(
                f"how long does a worker take for a batch? give one of batch: 0.8 s, rate: 2 M tokens/s; "
                f"got {' and '.join(given) or 'none'}"
            )
        return self

    @property
    def by_chance(self) -> bool:
        """Is anything drawn?"""
        return self.jitter is not None and not self.jitter.neutral

    def seconds(self, tokens: float) -> float:
        """What a worker takes for a batch of so many tokens."""
        return tokens / self.rate if self.rate is not None else float(self.batch or 0.0)

    def takes(self, tokens: Floats, count: int, seed: int) -> Floats:
        """Seconds of so many batches of each host, [host, batch]; ``tokens`` are those of a host's batch."""
        mean = np.array([self.seconds(each) for each in tokens.tolist()])
        found = np.repeat(mean[:, None], count, axis=1)
        if self.jitter is not None and self.by_chance:
            for host, own in enumerate(found):
                own *= self.jitter.draw(_STREAMS(seed, "loader", host), count)
        return found

    def in_words(self) -> str:
        """'loader 1 worker, 0.8 s a batch'."""
        what = f"{self.rate:,.0f} tokens/s each" if self.rate else f"{format_seconds(float(self.batch or 0.0))} a batch"
        ahead = "nothing ahead" if not self.prefetch else f"{self.prefetch} ahead"
        return f"loader {self.workers} worker{'s' * (self.workers > 1)}, {what}, {ahead}"
