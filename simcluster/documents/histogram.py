"""Probability distribution that a document gives as a histogram of measured values."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.documents.base_spec import Spec

_LONGEST_TABLE = 100_000

Spread = Annotated[float, Field(strict=False, ge=0, le=10)]
"""The sigma or scale of a distribution."""


class Histogram(Spec):
    """A measured distribution: values and their frequencies, drawn without interpolation.

    A slowdown of 1.5 on one kernel in a thousand is ``values: [1, 1.5], weights: [999, 1]``.
    """

    kind: Literal["histogram"]
    values: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=1, max_length=_LONGEST_TABLE)]
    """Measured values; alternatively, `file: FILE.csv` gives values and weights, one pair per line."""
    weights: tuple[Annotated[float, Field(ge=0)], ...] | None = None
    """Relative frequency of each value; default: all equal."""
    typical: Annotated[float, Field(gt=0)] = 1.0
    """Measured value that counts as factor 1: with 250, durations of about 250 us become factors around 1."""

    @model_validator(mode="after")
    def _check_weights(self) -> Histogram:
        if self.weights is not None and len(self.weights) != len(self.values):
            raise InputError(f"{len(self.values)} values but {len(self.weights)} weights; write one weight per value")
        if self.weights is not None and not sum(self.weights) > 0:
            raise InputError("weights are all 0; at least one value must be possible: write a weight above 0")
        return self

    @property
    def is_neutral(self) -> bool:
        """Return whether every draw is 1, in which case the histogram has no effect."""
        return all(value == self.typical for value in self.values)

    def draw(self, generator: np.random.Generator, count: int) -> Floats:
        """Draw ``count`` random values from the histogram, each divided by the histogram's typical value."""
        values = np.array(self.values) / self.typical
        if self.weights is None:
            return np.asarray(values[generator.integers(len(values), size=count)])
        steps = np.cumsum(self.weights)
        return np.asarray(values[np.searchsorted(steps, generator.random(count) * steps[-1], side="right")])
