"""The base of every document that a person writes in YAML."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema


class Spec(BaseModel):
    """A frozen piece of a scenario or topology file; an unknown key is an error, never ignored."""

    # Most commands use few of the 117 classes: validators are built when they are first used (0.08 s of a command).
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    def __dir__(self) -> Iterable[str]:
        """What is its own, without the fifty names that pydantic puts on every model."""
        return [name for name in super().__dir__() if name.startswith("__") or name not in _OF_EVERY_MODEL]


_OF_EVERY_MODEL = frozenset(dir(BaseModel))


Count: TypeAlias = Annotated[int, Field(strict=True, ge=1, le=10**9)]
"""How many of something: a whole number from 1, as in the file (8, not "8" nor 8.0).  Up to far beyond any cluster;
products of four such counts still fit a float."""

NUMBER_OR_TEXT = WithJsonSchema({"type": ["number", "string"]})
"""In the annotation of a number that may be written as text, as in "15.6T tokens" or "2 %": what editors are told."""


def _as_list(value: object) -> object:
    return (value,) if isinstance(value, str) else value


ONE_OR_MORE = BeforeValidator(_as_list)
"""In the annotation of a list of texts: one text stands for a list of it alone."""
