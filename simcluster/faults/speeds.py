"""GPUs of which no two are equally fast: a speed for each, drawn or measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import Complaint
from simcluster.faults.draws import Lognormal, Normal, stream
from simcluster.faults.spec import FaultSpec
from simcluster.faults.where import Number

SLOWEST = 0.01
_MOST_RANKS = 1 << 21

Speed = Annotated[float, Field(strict=False, ge=SLOWEST, le=100)]


class Speeds(FaultSpec):
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

    kind: Literal["speeds"]
    law: Annotated[Normal | Lognormal, Field(discriminator="kind")] | None = None
    table: Annotated[tuple[tuple[Number, Speed], ...], Field(min_length=1, max_length=_MOST_RANKS)] | None = None
    seed: Number | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        require_one_source(self.law, self.table, "GPUs", "GPU", "rank")
        return self

    @property
    def neutral(self) -> bool:
        return self.law.neutral if self.law else all(speed == 1 for _, speed in self.table or ())

    @property
    def by_chance(self) -> bool:
        return self.law is not None and not self.neutral

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


def require_one_source(law: object, table: Sequence[tuple[int, float]] | None, many: str, one: str, named: str) -> None:
    """InputError unless speeds are said by either a law or a table, and one of each.

    Of ``many``, say GPUs, each ``one`` is ``named`` by its rank.
    """
    if (law is None) == (table is None):
        what = f"law and table both say how fast {many} are; keep one" if law else f"how fast is each {one}? give one"
        raise InputError(f"{what}: law: {{kind: normal, sigma: 0.03}}, or table: the path of a CSV file, {named},speed")
    seen: set[int] = set()
    for number, _ in table or ():
        if number in seen:
            raise InputError(f"table has two speeds of {named} {number}; keep one")
        seen.add(number)
