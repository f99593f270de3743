"""All keys of a scenario by dotted path, each with type, unit, default and description.

A field's description is the string below it in its class. Pydantic could read these as it makes each class
(``use_attribute_docstrings``), at a cost of 0.1 s to every start; here they are read on demand. The schema of editors
(``schema``), completion, the reference and the studio are made of these keys. What validators accept in addition to the
annotation is stated by ``WithJsonSchema``, ``NameFromSet`` and ``SchemaAlternatives``, or in ``schema``.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel, WithJsonSchema
from pydantic.fields import FieldInfo

from simcluster.base.units import format_exact_quantity
from simcluster.documents import field_annotations
from simcluster.documents.base_spec import Spec
from simcluster.documents.diagnostics import format_value_inline, join_or
from simcluster.documents.field_annotations import NameFromSet, SchemaAlternatives, models_in_annotation
from simcluster.faults.slow_devices import PACE_KEYS, SlowDeviceFault
from simcluster.scenario.scenario_fields import ScenarioFields

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


def field_fragment(annotation: Any, metadata: Iterable[Any] = ()) -> Fragment:
    """Return the JSON schema of a pydantic field with this annotation and metadata."""
    marks = [mark for each in metadata for mark in (each.metadata if isinstance(each, FieldInfo) else [each])]
    for mark in marks:
        if isinstance(mark, WithJsonSchema) and mark.json_schema is not None:
            return dict(mark.json_schema)
        if isinstance(mark, NameFromSet):
            return {"enum": list(mark.allowed_names)}
        if isinstance(mark, field_annotations.ModelFromRegistry):
            return union_fragment(_schema_reference(model) for model in mark.registered_models)
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return _add_numeric_limits(field_fragment(inner, more), marks)
    return _add_numeric_limits(_type_fragment(annotation), marks)


def _type_fragment(annotation: Any) -> Fragment:
    origin, parts = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _schema_reference(annotation)
    if origin is Literal:
        return {"enum": list(parts)}
    if origin in (tuple, list):
        if len(parts) == 2 and parts[1] is not Ellipsis and origin is tuple:
            return {"type": "array", "items": union_fragment(map(field_fragment, parts)), "minItems": 2, "maxItems": 2}
        return {"type": "array", "items": field_fragment(parts[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": field_fragment(parts[1])}
    if parts:  # a union
        return union_fragment(map(field_fragment, parts))
    return dict(_PLAIN[annotation])


def form_fragment(form: Any) -> Fragment:
    """Return the JSON schema of a type, or of a tuple of allowed words; a JSON schema is returned unchanged."""
    if isinstance(form, dict):
        return form
    return {"enum": [*form]} if isinstance(form, tuple) else field_fragment(form)


def union_fragment(fragments: Iterable[Fragment]) -> Fragment:
    """Return a JSON schema that accepts any value that one of these schemas accepts."""
    found: list[Fragment] = []
    for each in fragments:
        found += [inner for inner in (each["anyOf"] if set(each) == {"anyOf"} else [each]) if inner not in found]
    return found[0] if len(found) == 1 else {"anyOf": found}


def _schema_reference(model: type[BaseModel]) -> Fragment:
    return {"$ref": f"#/$defs/{model.__name__}"}


def _add_numeric_limits(fragment: Fragment, marks: Iterable[Any]) -> Fragment:
    found = dict(fragment)
    for mark in marks:
        if type(mark) in _LIMITS and found.get("type") in ("integer", "number"):
            name, keyword = _LIMITS[type(mark)]
            found[keyword] = getattr(mark, name)
        elif type(mark) in _SIZES and found.get("type") in ("array", "string"):
            name, end = _SIZES[type(mark)]
            found[f"{end}{'Items' if found['type'] == 'array' else 'Length'}"] = getattr(mark, name)
    return found


def describe_fragment(fragment: Fragment) -> str:
    """Describe the type in a JSON schema, as in "whole number from 1" or 'none, auto or bytes, as in "80 GB"'."""
    said = [_describe_alternative(each) for each in _list_alternatives(fragment) if each.get("type") != "null"]
    return join_or(dict.fromkeys(each for each in said if each))


def _describe_alternative(each: Fragment) -> str:
    if "enum" in each:
        return join_or(map(format_value_inline, each["enum"]))
    if "$ref" in each:
        return "a section"
    if "x-unit" in each:
        return f'{each["x-unit"]}, as in "{each["examples"][0]}"'
    if "description" in each:
        return str(each["description"])
    kind = each.get("type", "")
    if isinstance(kind, list):
        return "a number, or text with its unit"
    if kind == "array":
        return f"a list of {describe_fragment(each['items']).removeprefix('a ')}" if "items" in each else "a list"
    name = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text",
            "object": "a mapping"}.get(kind, "")  # fmt: skip
    ends = [
        f"{word} {each[keyword]:,}"
        for keyword, word in (("minimum", "from"), ("exclusiveMinimum", "above"), ("maximum", "to"),
                              ("exclusiveMaximum", "below"))
        if keyword in each and abs(each[keyword]) < 10**9
    ]  # fmt: skip
    return " ".join([name, *ends])


def _list_alternatives(fragment: Fragment) -> list[Fragment]:
    found: list[Fragment] = fragment.get("anyOf", [fragment])
    return found


# --- keys -------------------------------------------------------------------------------------------------------------

_ANYWHERE = {
    "kind": "Type of this object, such as a kind of fault or of topology; it determines the other keys.",
    "name": "Name that tables and messages show.",
    "source": "Source of the values, such as a paper or a data sheet; shown, never used.",
    "seed": "Seed of random draws, added to the scenario's seed; default: number of earlier faults of this kind.",
}
"""Descriptions of fields whose classes have no text below them."""
_SYMBOLS = {"seconds": "s", "bytes": "B", "bytes per second": "B/s", "FLOP per second": "FLOP/s"}


@dataclass(frozen=True)
class ScenarioKey:
    """A key of a scenario file: its dotted path, and the pydantic field that defines the key.

    In ``path`` an item of a list or mapping is ``*``, and one of several kinds is in brackets, as in
    ``faults.*[slow_gpu].rank``.
    """

    path: str
    model: type[BaseModel]
    name: str

    @property
    def override_path(self) -> str:
        """Dotted path of the key for an override, without the kinds in brackets."""
        return re.sub(r"\[[\w-]+\]", "", self.path)

    @property
    def _field_info(self) -> FieldInfo:
        return self.model.model_fields[self.name]

    @cached_property
    def fragment(self) -> Fragment:
        """Type of the key as a JSON schema."""
        own = field_fragment(self._field_info.annotation, self._field_info.metadata)
        more = next((each for each in self._field_info.metadata if isinstance(each, SchemaAlternatives)), None)
        return union_fragment(own if one is ... else form_fragment(one) for one in more.alternatives()) if more else own

    @property
    def type_text(self) -> str:
        """Type of the key in words."""
        return describe_fragment(self.fragment)

    @property
    def unit(self) -> str:
        """Unit of the key's value, such as "bytes" or "seconds"; "" for a value without unit."""
        return next((each["x-unit"] for each in _list_alternatives(self.fragment) if "x-unit" in each), "")

    @property
    def choices(self) -> tuple[str, ...]:
        """Words that the key allows as values."""
        found = [
            each.get("enum", [True, False] if each.get("type") == "boolean" else [])
            for each in _list_alternatives(self.fragment)
        ]
        return tuple(format_value_inline(value) for values in found for value in values)

    @property
    def description(self) -> str:
        """Description of the key for users of scenario files."""
        return field_description(self.model, self.name)

    @property
    def required(self) -> bool:
        """Whether every scenario file must set the key."""
        one_of_some = issubclass(self.model, SlowDeviceFault) and self.name in PACE_KEYS
        return self._field_info.is_required() and not one_of_some

    @cached_property
    def default(self) -> Any:
        """Default of the key as in a file; None for required keys, sections, and defaults that depend on others."""
        default = None if self._field_info.is_required() else self._field_info.get_default(call_default_factory=True)
        if default is None or isinstance(default, Spec):
            return None
        if self.unit in _SYMBOLS and isinstance(default, float):
            return format_exact_quantity(default, _SYMBOLS[self.unit])
        if default == 0 and self.fragment.get("minimum", 0) > 0:
            return None
        return list(default) if isinstance(default, tuple) else default

    @property
    def default_text(self) -> str:
        """Default of the key in YAML; "" if the key has no default."""
        return "" if self.default in (None, [], "") else format_value_inline(self.default)


@cache
def list_scenario_keys() -> tuple[ScenarioKey, ...]:
    """Return all keys that a scenario file may have, in order; a model that contains itself is expanded once."""
    return tuple(_walk_keys(ScenarioFields, "", ()))


def _walk_keys(model: type[BaseModel], path: str, inside: tuple[type[BaseModel], ...]) -> Iterator[ScenarioKey]:
    for name, field in model.model_fields.items():
        here = f"{path}.{name}" if path else name
        yield ScenarioKey(here, model, name)
        models = [each for each in models_in_annotation(field.annotation, field.metadata) if each not in inside]
        several = {tuple, dict} & {*map(get_origin, (field.annotation, *get_args(field.annotation)))}
        below = "cluster" if here == "cluster.topology" else here  # a topology's parameters stand next to its name
        for each in models:
            kind = f"[{_kind_in_brackets(each)}]" if len(models) > 1 and _kind_in_brackets(each) else ""
            yield from _walk_keys(each, f"{below}{'.*' if several else ''}{kind}", (*inside, each))


def _kind_in_brackets(model: type[BaseModel]) -> str:
    kinds = [ScenarioKey("", model, name).choices for name in ("kind", "name") if name in model.model_fields]
    return next((words[0] for words in kinds if len(words) == 1), "")


def field_description(model: type[BaseModel], field: str) -> str:
    """Return the description of a pydantic model's field, or of the same field in a base class."""
    own = (
        _field_texts_in_module(each.__module__).get(each.__name__, {}).get(field, "")
        for each in model.__mro__
        if issubclass(each, Spec)
    )
    return next(filter(None, own), _ANYWHERE.get(field, ""))


@cache
def _field_texts_in_module(module: str) -> dict[str, dict[str, str]]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {
        one.name: {
            ast.unparse(field.target): " ".join(str(ast.literal_eval(below.value)).split())
            for field, below in pairwise(one.body)
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr)
        }
        for one in ast.walk(tree)
        if isinstance(one, ast.ClassDef)
    }
