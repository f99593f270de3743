"""All keys of a scenario by dotted path, with type, unit, default and description.

A field's description is the string below it in its class. Pydantic could read these as it makes each class
(``use_attribute_docstrings``), at a cost of 0.1 s to every start; here they are read on demand. The schema of editors
(``schema``), completion, the reference and the studio are made of these keys. What validators accept in addition to the
annotation is stated by ``WithJsonSchema``, ``WordOf`` and ``Accepts``, or in ``schema``.
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

from simcluster.base.units import write_quantity
from simcluster.documents.diagnostics import in_flow, listed
from simcluster.documents.kinds import Accepts, OneOf, WordOf, models_in
from simcluster.documents.spec import Spec
from simcluster.faults.pace import PACE_KEYS, PaceFault
from simcluster.scenario.fields import ScenarioFields

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
    """Return the JSON schema fragment of a field with this annotation."""
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


def form_of(form: Any) -> Fragment:
    """Return the JSON schema of a type, of a tuple of words, or of a schema."""
    if isinstance(form, dict):
        return form
    return {"enum": [*form]} if isinstance(form, tuple) else fragment_of(form)


def any_of(fragments: Iterable[Fragment]) -> Fragment:
    """Return the JSON schema that accepts any of several, without duplicates."""
    found: list[Fragment] = []
    for each in fragments:
        found += [inner for inner in (each["anyOf"] if set(each) == {"anyOf"} else [each]) if inner not in found]
    return found[0] if len(found) == 1 else {"anyOf": found}


def _reference(model: type[BaseModel]) -> Fragment:
    return {"$ref": f"#/$defs/{model.__name__}"}


def _limited(fragment: Fragment, marks: Iterable[Any]) -> Fragment:
    found = dict(fragment)
    for mark in marks:
        if type(mark) in _LIMITS and found.get("type") in ("integer", "number"):
            name, keyword = _LIMITS[type(mark)]
            found[keyword] = getattr(mark, name)
        elif type(mark) in _SIZES and found.get("type") in ("array", "string"):
            name, end = _SIZES[type(mark)]
            found[f"{end}{'Items' if found['type'] == 'array' else 'Length'}"] = getattr(mark, name)
    return found


def unit_in(fragment: Fragment) -> str:
    """Return the first quantity ("seconds") that a schema fragment accepts; "" for none."""
    return next((each["x-unit"] for each in _all(fragment) if "x-unit" in each), "")


def words_in(fragment: Fragment) -> tuple[str, ...]:
    """Return the words that a schema fragment accepts."""
    found = [each.get("enum", [True, False] if each.get("type") == "boolean" else []) for each in _all(fragment)]
    return tuple(_word(value) for values in found for value in values)


def text_of(fragment: Fragment) -> str:
    """Return a schema fragment's type in words: 'whole number from 1', 'none, auto or bytes, as in "80 GB"'."""
    said = [_said(each) for each in _all(fragment) if each.get("type") != "null"]
    return listed(dict.fromkeys(each for each in said if each))


def _said(each: Fragment) -> str:
    if "enum" in each:
        return listed(map(_word, each["enum"]))
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


# --- keys -------------------------------------------------------------------------------------------------------------

_ANYWHERE = {
    "kind": "Kind, which determines the other keys.",
    "name": "Name.",
    "source": "Source of the values; shown, never used.",
    "seed": "Seed of these draws, in addition to the scenario's; default: the number of earlier faults of this kind.",
}
"""Descriptions of fields whose classes have no text below them."""
_SYMBOLS = {"seconds": "s", "bytes": "B", "bytes per second": "B/s", "FLOP per second": "FLOP/s"}


@dataclass(frozen=True)
class ScenarioKey:
    """A key of a scenario, which is a field of a model.

    ``path`` is dotted; an item of a list or mapping is ``*``, and one of several kinds is in brackets, as in
    ``faults.*[slow_gpu].rank``.
    """

    path: str
    model: type[BaseModel]
    name: str

    @property
    def plain_path(self) -> str:
        """Path without kinds, as in an override."""
        return re.sub(r"\[[\w-]+\]", "", self.path)

    @property
    def _field(self) -> FieldInfo:
        return self.model.model_fields[self.name]

    @cached_property
    def fragment(self) -> Fragment:
        """Type of the key as a JSON schema fragment."""
        own = fragment_of(self._field.annotation, self._field.metadata)
        more = next((each for each in self._field.metadata if isinstance(each, Accepts)), None)
        return any_of(own if each is ... else form_of(each) for each in more.forms()) if more else own

    @property
    def takes(self) -> str:
        """Type of the key in words."""
        return text_of(self.fragment)

    @property
    def unit(self) -> str:
        """Quantity of the key ("bytes", "seconds"); "" if it has none."""
        return unit_in(self.fragment)

    @property
    def words(self) -> tuple[str, ...]:
        """Words that the key accepts."""
        return words_in(self.fragment)

    @property
    def description(self) -> str:
        """Description of the key."""
        return description(self.model, self.name)

    @property
    def required(self) -> bool:
        """Whether a document must have the key."""
        one_of_some = issubclass(self.model, PaceFault) and self.name in PACE_KEYS
        return self._field.is_required() and not one_of_some

    @cached_property
    def default(self) -> Any:
        """Default as in a file.

        None for required keys, sections, and defaults that depend on other keys.
        """
        default = None if self._field.is_required() else self._field.get_default(call_default_factory=True)
        if default is None or isinstance(default, Spec):
            return None
        if self.unit in _SYMBOLS and isinstance(default, float):
            return write_quantity(default, _SYMBOLS[self.unit])
        if default == 0 and self.fragment.get("minimum", 0) > 0:
            return None
        return list(default) if isinstance(default, tuple) else default

    @property
    def default_text(self) -> str:
        """Default as YAML writes it; "" for none."""
        if self.default is None or self.default in ([], ""):
            return ""
        return str(self.default).lower() if isinstance(self.default, bool) else in_flow(self.default)


@cache
def scenario_keys() -> tuple[ScenarioKey, ...]:
    """Return every key in the order of the sections; a recursive model is entered once."""
    return tuple(_below(ScenarioFields, "", ()))


def _below(model: type[BaseModel], path: str, inside: tuple[type[BaseModel], ...]) -> Iterator[ScenarioKey]:
    for name, field in model.model_fields.items():
        here = f"{path}.{name}" if path else name
        yield ScenarioKey(here, model, name)
        models = [each for each in models_in(field.annotation, field.metadata) if each not in inside]
        several = {tuple, dict} & {*map(get_origin, (field.annotation, *get_args(field.annotation)))}
        below = "cluster" if here == "cluster.topology" else here  # a topology's parameters stand next to its name
        for each in models:
            kind = f"[{_kind(each)}]" if len(models) > 1 and _kind(each) else ""
            yield from _below(each, f"{below}{'.*' if several else ''}{kind}", (*inside, each))


def _kind(model: type[BaseModel]) -> str:
    """Return the word that distinguishes a model from other kinds."""
    kinds = [ScenarioKey("", model, name).words for name in ("kind", "name") if name in model.model_fields]
    return next((words[0] for words in kinds if len(words) == 1), "")


def description(model: type[BaseModel], field: str) -> str:
    """Return the description of a model's field, from the first base class that has one."""
    own = (
        _texts(each.__module__).get(each.__name__, {}).get(field, "")
        for each in model.__mro__
        if issubclass(each, Spec)
    )
    return next(filter(None, own), _ANYWHERE.get(field, ""))


@cache
def _texts(module: str) -> dict[str, dict[str, str]]:
    """Return the descriptions below fields of a module, by class and field."""
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
