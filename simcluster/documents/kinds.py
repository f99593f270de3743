"""Documents of an open set of kinds, told apart by their key ``kind``; and words of an open set."""

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
    """As metadata of an annotation: one of the models in a list by kind, which is looked at when a document is read.

    So that a kind needs a line in the list and nothing else.  Complaints are those of a union of the models.
    """

    def __init__(self, kinds: Mapping[str, type[BaseModel]]) -> None:
        self._kinds = kinds

    @property
    def models(self) -> tuple[type[BaseModel], ...]:
        """Those of the list, as it is now."""
        return tuple(self._kinds.values())

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Reads by the list, and writes a model as what it is."""
        return core_schema.no_info_plain_validator_function(self._read)

    def _read(self, value: object) -> object:
        return _union(self.models).validate_python(value)


class WordOf:
    """As metadata of an annotation: the name of one of several things, which are looked up when a document is read."""

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self._names = names

    @property
    def words(self) -> tuple[str, ...]:
        """Those that there are now."""
        return tuple(self._names())

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """A text that is one of the words."""
        return core_schema.no_info_before_validator_function(self._read, handler(source))

    def _read(self, value: object) -> object:
        if value not in self.words:
            *some, last = self.words
            hint = did_you_mean(value, self.words)
            raise InputError(f"must be one of {', '.join(some)} or {last}{hint}; got {value!r}")
        return value


class Accepts:
    """As metadata of a field: all that a file may have there, where validators accept more than the annotation.

    Each form is a type, words, or a fragment of a JSON schema; ``...`` is the annotation itself.
    """

    def __init__(self, forms: Callable[[], Iterable[Any]]) -> None:
        self.forms = forms


A_PATH = {"type": "string", "pattern": r"[/\\.]", "description": "a path"}
OR_TABLE = Accepts(lambda: (..., {"type": "string", "pattern": r"\.csv$", "description": "the path of a CSV file"}))
"""For a table that may be a file."""


class Allowed(NamedTuple):
    """The ``values`` of a field that a kind of thing is modelled with, and ``why`` another one (``{value}``) is not."""

    values: tuple[object, ...]
    why: str = ""


def not_modelled(
    thing: str, modelled_with: Mapping[str, Allowed], document: object
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield a complaint for every field of a document whose value a thing is not modelled with, by its dotted path."""
    for path, (values, why) in modelled_with.items():
        value = attrgetter(path)(document)
        if value not in values:
            remedy = "leave it out" if values == (None,) else f"use {' or '.join(map(str, values))}"
            yield tuple(path.split(".")), why.format(value=value) or f"is not modelled with {thing}; {remedy}"


def models_in(annotation: object, metadata: Iterable[object] = ()) -> list[type[BaseModel]]:
    """The models that a field may hold, each once: itself, members of a union, kinds of a list, items of a list."""
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
