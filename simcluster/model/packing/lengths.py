"""Laws of documents' lengths, as documents.  To add one, write a spec with ``draw`` and add it to ``Lengths``."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.documents.laws import Histogram, Spread
from simcluster.documents.spec import Spec


class LognormalLengths(Spec):
    """A lognormal law of document lengths: a long tail, as texts have."""

    kind: Literal["lognormal"]
    median: Annotated[float, Field(ge=1, le=1e9)]
    """Tokens of the median document."""
    sigma: Spread
    """Standard deviation of the logarithm."""

    def draw(self, generator: np.random.Generator, count: int) -> Floats:
        """So many lengths in tokens, whole and at least 1."""
        return np.maximum(1.0, np.rint(self.median * np.exp(self.sigma * generator.standard_normal(count))))


class HistogramLengths(Histogram):
    """Lengths that were counted, in tokens: ``values`` with their ``weights``, as in ``Histogram``."""

    @model_validator(mode="after")
    def _whole(self) -> HistogramLengths:
        short = [value for value in self.values if value / self.typical < 1 or math.fmod(value / self.typical, 1)]
        if short:
            raise InputError(
                f"a document of {short[0]:g} tokens is none; lengths must be whole numbers from 1: raise the "
                f"median or the values"
            )
        return self


Lengths = Annotated[LognormalLengths | HistogramLengths, Field(discriminator="kind")]
"""A law of lengths, in tokens."""
