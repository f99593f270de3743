"""GPUs that are slower than they should be."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from simcluster.base.errors import InputError
from simcluster.faults.pace import Paced
from simcluster.faults.where import During, OnRanks


class SlowGpu(Paced, OnRanks, During):
    """A GPU whose every kernel takes ``slowdown`` times as long, or that keeps ``speed`` of its speed.

    On a ``rank``, several ``ranks`` or all of a ``node``; for ever, from ``start`` (s) to ``end``, or in the first
    ``duty`` of every ``period``: periodic throttling.  A kernel that is under way goes on at the new speed.
    """

    EXAMPLE: ClassVar = {"kind": "slow_gpu", "rank": 1, "slowdown": 1.5}
    NEUTRAL: ClassVar = {"kind": "slow_gpu", "rank": 1, "slowdown": 1.0}

    FACTOR = "slowdown"

    kind: Literal["slow_gpu"]
    factor: Annotated[float, Field(strict=True, ge=1, le=1e6)]

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if self.named is None and self.node is None:
            raise InputError("rank is required: which GPU is slow; or ranks, or node for all of a machine")
        return self

    @property
    def neutral(self) -> bool:
        return self.factor == 1

    def slowness(self) -> float:
        return self.factor
