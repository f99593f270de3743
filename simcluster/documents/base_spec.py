"""Base class for the sections of scenario and topology files, and field types that the sections share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema


class Spec(BaseModel):
    """Immutable section of a scenario or topology file; unknown keys are errors."""

    # Most commands use few of the 117 classes: validators are built when they are first used (0.08 s of a command).
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    def __dir__(self) -> Iterable[str]:
        """Return the model's attribute names, but not the fifty that pydantic gives every model."""
        return [name for name in super().__dir__() if name.startswith("__") or name not in _OF_EVERY_MODEL]


_OF_EVERY_MODEL = frozenset(dir(BaseModel))


Count: TypeAlias = Annotated[int, Field(strict=True, ge=1, le=10**9)]
"""A count: an integer of at least 1, as in the file (8, not "8" nor 8.0); the limit is far above any cluster, and
products of four counts still fit a float."""

NUMBER_OR_TEXT = WithJsonSchema({"type": ["number", "string"]})
"""Annotation of a number that may be written as text, as in "15.6T tokens" or "2 %", for the schema of editors."""


def _wrap_text_in_tuple(value: object) -> object:
    return (value,) if isinstance(value, str) else value


ONE_OR_MORE = BeforeValidator(_wrap_text_in_tuple)
"""Annotation of a list of texts that may be written as a single text."""
