"""GPUs of which no two are equally fast: a speed for each, drawn or measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from simcluster.base.arrays import Floats
from simcluster.documents.diagnostics import Complaint
from simcluster.faults.draws import stream
from simcluster.faults.own_speeds import MOST_LINES, SLOWEST, OwnSpeeds
from simcluster.faults.where import Number

Speed = Annotated[float, Field(strict=False, ge=SLOWEST, le=100)]


class Speeds(OwnSpeeds):
    """A speed for every GPU, for ever: its kernels take 1 / speed times as long; 1 is as the device says.

    The speeds are drawn from a ``law`` with mean 1 (never below 0.01), one a rank, rank n's the same however many GPUs
    there are; or they stand in a ``table`` of ranks and speeds, others being at 1: in a scenario file it may be the
    path of a CSV file, relative to it, with ``rank,speed`` a line.  GPUs of one kind and one cluster differ by 8 %
    on average (Sinha et al., Not All GPUs Are Created Equal, SC 2022).  ``seed`` is the number of the stream of draws,
    as for jitter; of several replicas each has other speeds.
    """

    EXAMPLE: ClassVar = {"kind": "speeds", "law": {"kind": "normal", "sigma": 0.3}}
    NEUTRAL: ClassVar = {"kind": "speeds", "law": {"kind": "normal", "sigma": 0}}
    ONCE: ClassVar = "a GPU has one speed"
    MANY: ClassVar = "GPUs"
    ONE: ClassVar = "GPU"
    NUMBER: ClassVar = "rank"

    kind: Literal["speeds"]
    table: Annotated[tuple[tuple[Number, Speed], ...], Field(min_length=1, max_length=MOST_LINES)] | None = None

    def slowdowns(self, ranks: int, seed: int) -> Floats:
        """What multiplies the seconds of computation of every rank."""
        if self.law is not None:
            return 1.0 / np.maximum(self.law.draw(stream(seed, "speeds", self.seed), ranks), SLOWEST)
        found = np.ones(ranks)
        number, speed = np.array(self.table, dtype=np.float64).T
        found[number.astype(np.int64)] = 1.0 / speed
        return found

    def complaints(self, scenario: Any) -> Iterator[Complaint]:
        """Its ranks are in the job."""
        beyond = max((rank for rank, _ in self.table or ()), default=-1)
        if beyond >= scenario.gpus:
            what = f"there is no rank {beyond}: the job has {scenario.gpus} GPUs, so ranks 0 to {scenario.gpus - 1}"
            yield ("table",), what

    def moved(self, host_of: Sequence[int], place: Mapping[int, int]) -> Self | None:
        """The speeds of a table go with their GPUs; a law is drawn for those that are left."""
        if self.table is None:
            return self
        table = tuple([(place[rank], speed) for rank, speed in self.table if rank in place])
        return self.model_copy(update={"table": table}) if table else None
