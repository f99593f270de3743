"""Field types for extensible sets: documents distinguished by their key ``kind``, and words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, Field, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema

from simcluster.base.errors import InputError
from simcluster.base.texts import did_you_mean


class OneOf:
    """Annotation metadata: one of the models of a registry by kind, looked up when a document is read.

    So a new kind needs only a line in the registry. Error messages are those of a union of the models.
    """

    def __init__(self, kinds: Mapping[str, type[BaseModel]]) -> None:
        self._kinds = kinds

    @property
    def models(self) -> tuple[type[BaseModel], ...]:
        """Return the models now in the registry."""
        return tuple(self._kinds.values())

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Read by the registry's models, and serialize a model by its own class."""
        return core_schema.no_info_plain_validator_function(self._read)

    def _read(self, value: object) -> object:
        return _union(self.models).validate_python(value)


class WordOf:
    """Annotation metadata: one of a set of names, looked up when a document is read."""

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self._names = names

    @property
    def words(self) -> tuple[str, ...]:
        """Return the words now in the set."""
        return tuple(self._names())

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Require a text that is one of the words."""
        return core_schema.no_info_before_validator_function(self._read, handler(source))

    def _read(self, value: object) -> object:
        if value not in self.words:
            *some, last = self.words
            hint = did_you_mean(value, self.words)
            raise InputError(f"must be one of {', '.join(some)} or {last}{hint}; got {value!r}")
        return value


class Accepts:
    """Annotation metadata: all forms that a file may have, where validators accept more than the type.

    Each form is a type, words, or a fragment of a JSON schema; ``...`` is the annotation itself.
    """

    def __init__(self, forms: Callable[[], Iterable[Any]]) -> None:
        self.forms = forms


A_PATH = {"type": "string", "pattern": r"[/\\.]", "description": "a path"}
OR_TABLE = Accepts(lambda: (..., {"type": "string", "pattern": r"\.csv$", "description": "the path of a CSV file"}))
"""Metadata of a table field that may also be a CSV file."""


class Allowed(NamedTuple):
    """Field values that a feature is modelled with, and ``why`` other values (``{value}``) are not."""

    values: tuple[object, ...]
    why: str = ""


def not_modelled(
    thing: str, modelled_with: Mapping[str, Allowed], document: object
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield an error for every field whose value ``thing`` is not modelled with, by its dotted path."""
    for path, (values, why) in modelled_with.items():
        value = attrgetter(path)(document)
        if value not in values:
            remedy = "remove it" if values == (None,) else f"use {' or '.join(map(str, values))}"
            yield tuple(path.split(".")), why.format(value=value) or f"is not modelled with {thing}; {remedy}"


def models_in(annotation: object, metadata: Iterable[object] = ()) -> list[type[BaseModel]]:
    """Return the models that a field may hold: its own, union members, registered kinds, list items."""
    if listed := [model for each in metadata if isinstance(each, OneOf) for model in each.models]:
        return listed
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    parts = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return models_in(parts[0], parts[1:])
    return list(dict.fromkeys(model for part in parts for model in models_in(part)))


@lru_cache(maxsize=8)
def _union(models: tuple[type[BaseModel], ...]) -> TypeAdapter[Any]:
    union: Any = Annotated[Union[models], Field(discriminator="kind")]  # noqa: UP007
    return TypeAdapter(union)
