"""Fault of uneven images: sequences have different numbers of image tokens, which the vision encoder makes.

Every microbatch of every replica then takes another time on the first pipeline stage, and other memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.documents.diagnostics import KeyProblem
from simcluster.faults.fault_spec import BatchSizes, FaultSpec, faults_with_effect
from simcluster.faults.random_factors import Factors, random_stream
from simcluster.faults.targets import Number


class ImageTokens(FaultSpec):
    """Fault: sequences have unequal numbers of image tokens, drawn around ``model.encoder.image_tokens``.

    The encoder's kernels and activations of a microbatch scale with its image tokens; a sequence has at most
    ``sequence_length`` of them, and its length stays. MFU and HFU count the tokens that are drawn. Sequence n of the
    batch is the same however the job is split.
    """

    EXAMPLE: ClassVar = {"kind": "image_tokens", "tokens": {"kind": "lognormal", "sigma": 1}}
    NEUTRAL: ClassVar = {"kind": "image_tokens", "tokens": {"kind": "lognormal", "sigma": 0}}
    ONCE: ClassVar = "a sequence has one number of image tokens"

    kind: Literal["image_tokens"]
    tokens: Factors
    """Distribution of a sequence's image tokens, as factors on model.encoder.image_tokens; or a histogram of counts,
    with typical set to image_tokens."""
    seed: Number | None = None

    @property
    def is_neutral(self) -> bool:
        return self.tokens.is_neutral

    def count_tokens(self, seed: int, step: int, batch: BatchSizes, dp: int) -> Floats:
        """Return the image tokens of each sequence of a step: [replica, microbatch, sequence]."""
        shape = (batch.microbatches, dp, batch.micro_batch)
        factors = self.tokens.draw(random_stream(seed, "images", self.seed, step), int(np.prod(shape)))
        return np.clip(np.rint(factors * batch.image_tokens), 0, batch.length).reshape(shape).swapaxes(0, 1)

    def image_factors(self, seed: int, batch: BatchSizes, dp: int) -> Floats:
        counts = [self.count_tokens(seed, step, batch, dp).mean(axis=2) for step in range(batch.steps)]
        return np.stack(counts) / batch.image_tokens

    def complaints(self, scenario: Any) -> Iterator[KeyProblem]:
        if scenario.model.encoder is None:
            yield (), "the model has no encoder that makes image tokens; remove image_tokens, or set model.encoder"
        elif faults_with_effect(scenario.faults, "expert_loads"):
            yield (), "is not modelled with expert_imbalance; remove one of them"
