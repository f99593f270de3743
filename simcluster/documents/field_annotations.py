"""Annotations of pydantic fields that hold a registry's entry: a model selected by ``kind``, or a name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, reduce
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, Field, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema

from simcluster.base.errors import InputError
from simcluster.base.texts import did_you_mean


class ModelFromRegistry:
    """Annotation of a field whose value is one of a registry's models, selected by the key ``kind``.

    The registry is read when a document is read, so a new kind needs only a line there. Error messages are those of a
    union of the models.
    """

    def __init__(self, kinds: Mapping[str, type[BaseModel]]) -> None:
        self._kinds = kinds

    @property
    def registered_models(self) -> tuple[type[BaseModel], ...]:
        """Return the models in the registry at this moment."""
        return tuple(self._kinds.values())

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return a pydantic schema that validates a value against the models now in the registry."""
        return core_schema.no_info_plain_validator_function(self._validate)

    def _validate(self, value: object) -> object:
        return _kind_union_adapter(self.registered_models).validate_python(value)


class NameFromSet:
    """Annotation of a field whose value is a name from a set; the set may change between validations."""

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self._names = names

    @property
    def allowed_names(self) -> tuple[str, ...]:
        """Return the names that are allowed at this moment."""
        return tuple(self._names())

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return a pydantic schema that accepts only the names allowed at validation."""
        return core_schema.no_info_before_validator_function(self._require_allowed_name, handler(source))

    def _require_allowed_name(self, value: object) -> object:
        if value not in self.allowed_names:
            *some, last = self.allowed_names
            hint = did_you_mean(value, self.allowed_names)
            raise InputError(f"must be one of {', '.join(some)} or {last}{hint}; got {value!r}")
        return value


class SchemaAlternatives:
    """Annotation that adds types to a field's JSON schema: those that a file may use in addition to the field's type.

    Each form is a type, names, or a fragment of a JSON schema; ``...`` is the field's annotation.
    """

    def __init__(self, types: Callable[[], Iterable[Any]]) -> None:
        self.alternatives = types


A_PATH = {"type": "string", "pattern": r"[/\\.]", "description": "the path of a file"}
OR_TABLE = SchemaAlternatives(lambda: (..., {**A_PATH, "pattern": r"\.csv$", "description": "the path of a CSV file"}))
"""Metadata of a table field that may also be a CSV file."""


class AllowedValues(NamedTuple):
    """Values of a scenario field that a feature supports; ``reason`` is the error text for any other value."""

    values: tuple[object, ...]
    reason: str = ""


def find_unsupported_values(
    feature: str, supported: Mapping[str, AllowedValues], document: object
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield (key path, error text) for each scenario field whose value ``feature`` does not support."""
    for path, (values, why) in supported.items():
        try:
            value = reduce(lambda at, name: None if at is None else getattr(at, name), path.split("."), document)
        except AttributeError:
            raise InputError(f"{feature} name values of {path!r}, which is not a field here; remove it") from None
        if value not in values:
            remedy = "remove it" if values == (None,) else f"use {' or '.join(map(str, values))}"
            yield (
                tuple(path.split(".")),
                why.replace("{value}", str(value)) or f"is not modelled with {feature}; {remedy}",
            )


def models_in_annotation(annotation: object, metadata: Iterable[object] = ()) -> list[type[BaseModel]]:
    """Return the pydantic models in an annotation: itself, union members, registered models or list items."""
    if found := [model for each in metadata if isinstance(each, ModelFromRegistry) for model in each.registered_models]:
        return found
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    parts = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return models_in_annotation(parts[0], parts[1:])
    return list(dict.fromkeys(model for part in parts for model in models_in_annotation(part)))


@lru_cache(maxsize=8)
def _kind_union_adapter(models: tuple[type[BaseModel], ...]) -> TypeAdapter[Any]:
    union: Any = Annotated[Union[models], Field(discriminator="kind")]  # noqa: UP007
    return TypeAdapter(union)
