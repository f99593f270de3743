"""A speed for each of many alike things, GPUs or the NICs of machines: drawn from a law, or listed in a table."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from simcluster.base.errors import InputError
from simcluster.faults.draws import Lognormal, Normal
from simcluster.faults.spec import FaultSpec
from simcluster.faults.where import Number

SLOWEST = 0.01
MOST_LINES = 1 << 21


class OwnSpeeds(FaultSpec):
    """A fault that gives each its own speed, by either a ``law`` with mean 1 or a ``table`` of numbers and speeds.

    What has a speed is called ``MANY`` together and ``ONE`` by itself, and its number ``NUMBER``.  Raises InputError
    for law and table at once, for neither, and for two speeds of one number.
    """

    MANY: ClassVar[str]
    ONE: ClassVar[str]
    NUMBER: ClassVar[str]

    kind: str  # each kind has its own word; here, so that it stands first in a document
    law: Annotated[Normal | Lognormal, Field(discriminator="kind")] | None = None
    table: Annotated[tuple[tuple[Number, float], ...], Field(min_length=1, max_length=MOST_LINES)] | None = None
    seed: Number | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.law is None) == (self.table is None):
            both = f"law and table both say how fast {self.MANY} are; keep one"
            what = both if self.law else f"how fast is each {self.ONE}? give one"
            choice = f"law: {{kind: normal, sigma: 0.03}}, or table: the path of a CSV file, {self.NUMBER},speed"
            raise InputError(f"{what}: {choice}")
        seen: set[int] = set()
        for number, _ in self.table or ():
            if number in seen:
                raise InputError(f"table has two speeds of {self.NUMBER} {number}; keep one")
            seen.add(number)
        return self

    @property
    def neutral(self) -> bool:
        return self.law.neutral if self.law else all(speed == 1 for _, speed in self.table or ())

    @property
    def by_chance(self) -> bool:
        return self.law is not None and not self.neutral
