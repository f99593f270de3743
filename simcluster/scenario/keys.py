"""Every key that a scenario may have: where, what may stand there, what if it is left out, what it says, in which unit.

The one walk over the sections' fields, for the schema that editors read (``schema``), for the comments of a new
scenario and for the reference.  What a key says is in ``keys.yaml`` beside this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from simcluster.base.units import write_quantity
from simcluster.documents.diagnostics import in_flow
from simcluster.documents.kinds import models_in
from simcluster.documents.reading import read_document
from simcluster.documents.spec import Spec
from simcluster.faults.pace import PACES, Paced
from simcluster.scenario.fields import ScenarioFields
from simcluster.scenario.key_types import Fragment, fragment_of, text_of, unit_in, words_in

_IN_CLUSTER = "cluster.topology"
"""Parameters of a topology may stand beside its name."""


@dataclass(frozen=True)
class ScenarioKey:
    """A key of a scenario.

    ``path`` is dotted; an item of a list is ``*``, and a kind of several stands in brackets, as in
    ``faults.*[slow_gpu].rank``.  ``takes`` is in words what may stand there, ``words`` are those that it may be, if it
    is one of some, and ``unit`` what a quantity is of ("bytes", "seconds"; "" for others).  ``default`` is as a file
    writes it; None where there is none: then the key is ``required``, or its ``description`` says what follows.
    ``model`` is the class that has the field.
    """

    path: str
    takes: str
    default: Any
    required: bool
    description: str
    unit: str
    words: tuple[str, ...]
    model: type[BaseModel]

    @property
    def default_text(self) -> str:
        """The default as YAML writes it, "" for none."""
        if self.default is None or self.default in ([], ""):
            return ""
        return str(self.default).lower() if isinstance(self.default, bool) else in_flow(self.default)


def scenario_keys() -> tuple[ScenarioKey, ...]:
    """All of them, in the order of the sections; a part that may be inside itself is told once."""
    return tuple(_below(ScenarioFields, "", ()))


def description(model: type[BaseModel], field: str) -> str:
    """What a field says, by the class that has it first, in a sentence; "" where nobody has written it."""
    known = _descriptions()
    for each in model.__mro__:
        if field in known.get(each.__name__, {}):
            return str(known[each.__name__][field])
    return str(known["any"].get(field, ""))


@cache
def _descriptions() -> dict[str, dict[str, str]]:
    return read_document(Path(__file__).with_suffix(".yaml")).data


def _below(model: type[BaseModel], path: str, inside: tuple[type[BaseModel], ...]) -> Iterator[ScenarioKey]:
    for name, field in model.model_fields.items():
        here = f"{path}.{name}" if path else name
        found = fragment_of(field.annotation, field.metadata)
        one_of_some = issubclass(model, Paced) and name in PACES
        unit, required = unit_in(found), field.is_required() and not one_of_some
        default = None if required else default_of(field, found)
        text, words = text_of(found), words_in(found)
        yield ScenarioKey(here, text, default, required, description(model, name), unit, words, model)
        models = [each for each in models_in(field.annotation, field.metadata) if each not in inside]
        item = ".*" if found.get("type") == "array" else ""
        below = "cluster" if here == _IN_CLUSTER else here
        for each in models:
            kind = f"[{_kind(each)}]" if len(models) > 1 and _kind(each) else ""
            yield from _below(each, f"{below}{item}{kind}", (*inside, each))


def _kind(model: type[BaseModel]) -> str:
    """The word by which a kind is told from the others."""
    for name in ("kind", "name"):
        field = model.model_fields.get(name)
        words = words_in(fragment_of(field.annotation, field.metadata)) if field else ()
        if len(words) == 1:
            return words[0]
    return ""


def default_of(field: FieldInfo, fragment: Fragment) -> Any:
    """A field's default as a file writes it: plain data, quantities as text.

    None for none, for a section, whose keys have theirs, and for a number that stands for what follows from the rest.
    """
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    if default is None or isinstance(default, Spec):
        return None
    unit = unit_in(fragment)
    if unit in _SYMBOLS and isinstance(default, float):
        return write_quantity(default, _SYMBOLS[unit])
    if default == 0 and fragment.get("minimum", 0) > 0:
        return None
    return list(default) if isinstance(default, tuple) else default


_SYMBOLS = {"seconds": "s", "bytes": "B", "bytes per second": "B/s", "FLOP per second": "FLOP/s"}
