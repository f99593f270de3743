"""What is slower than it should be: stragglers and degraded links, as documents.  Imports spec only.

A fault is part of a scenario (``faults: [...]``); planning and the engine turn the knobs that it names.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from simcluster.errors import InputError
from simcluster.spec import Spec


class SlowGpu(Spec):
    """A GPU whose every kernel takes ``factor`` times as long (1.2: 20 % slower); 1 changes nothing."""

    kind: Literal["slow_gpu"]
    rank: Annotated[int, Field(strict=True, ge=0)]
    factor: Annotated[float, Field(strict=True, ge=1, le=1e6)]


class SlowLink(Spec):
    """A cable between two nodes that carries ``factor`` of its bandwidth, in both directions; 1 changes nothing.

    ``between`` names two neighbours in the cluster's graph, as ``simcluster topology FILE`` prints them.
    """

    kind: Literal["slow_link"]
    between: tuple[str, str]
    factor: Annotated[float, Field(strict=True, gt=0, le=1)]

    @model_validator(mode="after")
    def _two_ends(self) -> SlowLink:
        if self.between[0] == self.between[1]:
            raise InputError(f"between: a link has two different ends, got {self.between[0]!r} twice")
        return self


Fault = Annotated[SlowGpu | SlowLink, Field(discriminator="kind")]
"""Any fault; to add one, write a spec with a new ``kind`` and add it here."""
