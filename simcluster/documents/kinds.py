"""Annotations for fields with an extensible set of values: models by their key ``kind``, and names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, Field, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema

from simcluster.base.errors import InputError
from simcluster.base.texts import did_you_mean


class RegisteredModel:
    """Field annotation: the value is one of a registry's models, selected by its key ``kind``.

    The registry is read when a document is read, so a new kind needs only a line there. Error messages are those of a
    union of the models.
    """

    def __init__(self, kinds: Mapping[str, type[BaseModel]]) -> None:
        self._kinds = kinds

    @property
    def models(self) -> tuple[type[BaseModel], ...]:
        """Return the registry's current models."""
        return tuple(self._kinds.values())

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return a pydantic schema that validates against the registry's current models."""
        return core_schema.no_info_plain_validator_function(self._validate)

    def _validate(self, value: object) -> object:
        return _union_adapter(self.models).validate_python(value)


class NameFromSet:
    """Field annotation: the value is one of a set of names, which is read when a document is read."""

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self._names = names

    @property
    def words(self) -> tuple[str, ...]:
        """Return the names that are currently allowed."""
        return tuple(self._names())

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return a pydantic schema that requires one of the current names."""
        return core_schema.no_info_before_validator_function(self._require_name, handler(source))

    def _require_name(self, value: object) -> object:
        if value not in self.words:
            *some, last = self.words
            hint = did_you_mean(value, self.words)
            raise InputError(f"must be one of {', '.join(some)} or {last}{hint}; got {value!r}")
        return value


class FileForms:
    """Field annotation: forms that a file may use in addition to the field's type, for the JSON schema.

    Each form is a type, names, or a fragment of a JSON schema; ``...`` is the annotation itself.
    """

    def __init__(self, forms: Callable[[], Iterable[Any]]) -> None:
        self.forms = forms


A_PATH = {"type": "string", "pattern": r"[/\\.]", "description": "the path of a file"}
OR_TABLE = FileForms(lambda: (..., {"type": "string", "pattern": r"\.csv$", "description": "the path of a CSV file"}))
"""Metadata of a table field that may also be a CSV file."""


class AllowedValues(NamedTuple):
    """Values of a scenario field that a feature supports, and ``why`` not others (``{value}`` is replaced)."""

    values: tuple[object, ...]
    why: str = ""


def find_unmodelled_values(
    thing: str, modelled_with: Mapping[str, AllowedValues], document: object
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield an error for every scenario field with a value that ``thing`` is not modelled with, by its path."""
    for path, (values, why) in modelled_with.items():
        value = attrgetter(path)(document)
        if value not in values:
            remedy = "remove it" if values == (None,) else f"use {' or '.join(map(str, values))}"
            yield tuple(path.split(".")), why.format(value=value) or f"is not modelled with {thing}; {remedy}"


def models_in(annotation: object, metadata: Iterable[object] = ()) -> list[type[BaseModel]]:
    """Return the pydantic models that a field may hold: itself, union members, registered kinds, list items."""
    if listed := [model for each in metadata if isinstance(each, RegisteredModel) for model in each.models]:
        return listed
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    parts = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return models_in(parts[0], parts[1:])
    return list(dict.fromkeys(model for part in parts for model in models_in(part)))


@lru_cache(maxsize=8)
def _union_adapter(models: tuple[type[BaseModel], ...]) -> TypeAdapter[Any]:
    union: Any = Annotated[Union[models], Field(discriminator="kind")]  # noqa: UP007
    return TypeAdapter(union)
