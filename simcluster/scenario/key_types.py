"""What may stand at a key, by the field's annotation: as a fragment of a JSON schema, and in words.

Models are references (``#/$defs/NAME``).  What validators allow beyond the annotation they say themselves
(``WithJsonSchema``, ``WordOf``), or ``schema`` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel, WithJsonSchema
from pydantic.fields import FieldInfo

from simcluster.documents.diagnostics import listed
from simcluster.documents.kinds import OneOf, WordOf

Fragment = dict[str, Any]

_PLAIN: dict[Any, Fragment] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    str: {"type": "string"},
    NoneType: {"type": "null"},
    object: {},
    Any: {},
}
_LIMITS: dict[type, tuple[str, str]] = {
    Ge: ("ge", "minimum"), Gt: ("gt", "exclusiveMinimum"), Le: ("le", "maximum"), Lt: ("lt", "exclusiveMaximum"),
}  # fmt: skip
_SIZES = {MinLen: ("min_length", "min"), MaxLen: ("max_length", "max")}


def fragment_of(annotation: Any, metadata: Iterable[Any] = ()) -> Fragment:
    """What may stand where a field is annotated so."""
    marks = [mark for each in metadata for mark in (each.metadata if isinstance(each, FieldInfo) else [each])]
    for mark in marks:
        if isinstance(mark, WithJsonSchema) and mark.json_schema is not None:
            return dict(mark.json_schema)
        if isinstance(mark, WordOf):
            return {"enum": list(mark.words)}
        if isinstance(mark, OneOf):
            return any_of(_reference(model) for model in mark.models)
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return _limited(fragment_of(inner, more), marks)
    return _limited(_of_type(annotation), marks)


def _of_type(annotation: Any) -> Fragment:
    origin, parts = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _reference(annotation)
    if origin is Literal:
        return {"enum": list(parts)}
    if origin in (tuple, list):
        if len(parts) == 2 and parts[1] is not Ellipsis and origin is tuple:
            return {"type": "array", "items": any_of(map(fragment_of, parts)), "minItems": 2, "maxItems": 2}
        return {"type": "array", "items": fragment_of(parts[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": fragment_of(parts[1])}
    if parts:  # a union
        return any_of(map(fragment_of, parts))
    return dict(_PLAIN[annotation])


def any_of(fragments: Iterable[Fragment]) -> Fragment:
    """One of several, each once."""
    found: list[Fragment] = []
    for each in fragments:
        found += [inner for inner in (each["anyOf"] if set(each) == {"anyOf"} else [each]) if inner not in found]
    return found[0] if len(found) == 1 else {"anyOf": found}


def _reference(model: type[BaseModel]) -> Fragment:
    return {"$ref": f"#/$defs/{model.__name__}"}


def _limited(fragment: Fragment, marks: Iterable[Any]) -> Fragment:
    """With the limits of numbers and of lengths."""
    found = dict(fragment)
    for mark in marks:
        if type(mark) in _LIMITS and found.get("type") in ("integer", "number"):
            name, keyword = _LIMITS[type(mark)]
            found[keyword] = getattr(mark, name)
        elif type(mark) in _SIZES and found.get("type") in ("array", "string"):
            name, end = _SIZES[type(mark)]
            found[f"{end}{'Items' if found['type'] == 'array' else 'Length'}"] = getattr(mark, name)
    return found


# --- in words ---------------------------------------------------------------------------------------------------------


def unit_in(fragment: Fragment) -> str:
    """What a quantity is of ("seconds"), the first where several may stand; "" for others."""
    return next((each["x-unit"] for each in _all(fragment) if "x-unit" in each), "")


def words_in(fragment: Fragment) -> tuple[str, ...]:
    """The words that may stand there."""
    return tuple(_word(value) for each in _all(fragment) for value in each.get("enum", ()))


def text_of(fragment: Fragment) -> str:
    """What may stand there, for people: 'whole number from 1', 'none, auto or bytes, as in "80 GB"'."""
    said = [_said(each) for each in _all(fragment) if each.get("type") != "null"]
    return listed(dict.fromkeys(each for each in said if each))


def _said(each: Fragment) -> str:
    if "enum" in each:
        return listed(map(_word, each["enum"]))
    if "$ref" in each:
        return "a section"
    if "x-unit" in each:
        return f'{each["x-unit"]}, as in "{each["examples"][0]}"'
    kind = each.get("type", "")
    if isinstance(kind, list):
        return "a number, or text with its unit"
    if kind == "array":
        return f"a list of {text_of(each['items']).removeprefix('a ')}" if "items" in each else "a list"
    name = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text",
            "object": "a mapping"}.get(kind, "")  # fmt: skip
    ends = [
        f"{word} {each[keyword]:,}"
        for keyword, word in (("minimum", "from"), ("exclusiveMinimum", "above"), ("maximum", "to"),
                              ("exclusiveMaximum", "below"))
        if keyword in each and abs(each[keyword]) < 10**9
    ]  # fmt: skip
    return " ".join([name, *ends])


def _all(fragment: Fragment) -> list[Fragment]:
    found: list[Fragment] = fragment.get("anyOf", [fragment])
    return found


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
