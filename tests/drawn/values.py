"""Values of a field, drawn from its annotation: what is declared later is drawn without a line here."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from random import Random
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from simcluster.documents.field_annotations import models_in_annotation
from simcluster.scenario.scenario_keys import field_fragment

QUANTITIES: dict[str, tuple[str, ...]] = {
    "seconds": ("3 us", "20 us", "100 us", "300 us", "1 ms"),  # a drawn step takes some ms
    "bytes": ("100 kB", "1 MB", "8 MB"),
    "bytes per second": ("1 GB/s", "20 GB/s", "1 TB/s"),
}
FACTORS = (0.0, 0.1, 0.3, 0.5, 0.9, 1.0, 1.5, 2.0, 4.0)


class NothingDrawnError(Exception):
    """A field of text, of which only a person knows what it says."""


def drawn(dice: Random, annotation: Any, metadata: Iterable[Any] = (), names: Mapping[str, Any] = {}) -> Any:
    """Return a value that the annotation allows; ``names`` has those of fields of models by their names."""
    models = models_in_annotation(annotation, metadata)
    fragment = field_fragment(annotation, metadata)
    kinds = [each for each in fragment.get("anyOf", [fragment]) if each.get("type") != "null"]
    kind = dice.choice([each for each in kinds if each.get("type") != "string" or "x-unit" in each] or [{}])
    if "$ref" in kind:
        return document(dice, dice.choice(models), names)
    if "enum" in kind:
        return dice.choice(kind["enum"])
    if kind.get("type") == "array":
        return several(dice, annotation, kind.get("minItems", 1), names)
    if "x-unit" in kind:
        return dice.choice(QUANTITIES[kind["x-unit"]])
    return number(dice, kind)


def number(dice: Random, kind: Mapping[str, Any]) -> Any:
    """Return a number or a truth value inside the limits of a fragment of a schema."""
    sort = kind.get("type")
    if sort == "boolean":
        return dice.choice((False, True))
    if sort == "integer":
        low = kind.get("minimum", 0)
        values: Iterable[float] = (low, low + 1, low + 2, 3, 4, 8)
    elif sort == "number" or isinstance(sort, list):
        values = FACTORS
    else:
        raise NothingDrawnError
    low, high = kind.get("minimum", float("-inf")), kind.get("maximum", float("inf"))
    above, below = kind.get("exclusiveMinimum", float("-inf")), kind.get("exclusiveMaximum", float("inf"))
    return dice.choice([value for value in values if low <= value <= high and above < value < below])


def several(dice: Random, annotation: Any, least: int, names: Mapping[str, Any]) -> list[Any]:
    """Return the value of a field that takes a tuple: one to three of what may stand in it, each once."""
    (item,) = [get_args(each)[0] for each in parts_of(annotation) if get_origin(each) in (tuple, list)]
    found = [drawn(dice, item, (), names) for _ in range(dice.randint(max(1, least), 3))]
    return [each for place, each in enumerate(found) if each not in found[:place]]


def parts_of(annotation: Any) -> list[Any]:
    """Return the members of a union, at any depth."""
    if get_origin(annotation) in (tuple, list, Literal) or not get_args(annotation):
        return [annotation]
    inner = get_args(annotation)[:1] if hasattr(annotation, "__metadata__") else get_args(annotation)
    return list(itertools.chain.from_iterable(parts_of(each) for each in inner if each is not NoneType))


def document(dice: Random, model: type[BaseModel], names: Mapping[str, Any] = {}) -> dict[str, Any]:
    """Return the document of a model: its example, with a third of its other fields."""
    found: dict[str, Any] = dict(getattr(model, "EXAMPLE", {}))
    for name, field in model.model_fields.items():
        if name in found or (not field.is_required() and dice.random() > 0.3):
            continue
        try:
            found[name] = names[name] if name in names else drawn(dice, field.annotation, field.metadata, names)
        except NothingDrawnError:
            assert not field.is_required(), (model, name)
    return found
