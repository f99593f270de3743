"""Values and calls of Python code read as data, and configurations that frameworks write as calls."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from simcluster.documents.reading import parse_document

_MAX_ITEMS, _MAX_NUMBER = 100_000, 10**18
_DOTTED_NAME = re.compile(r"[\w.]+")
_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_,
    ast.IsNot: operator.is_not, ast.In: lambda left, right: _to_dict_key(left, right) in right,
    ast.NotIn: lambda left, right: _to_dict_key(left, right) not in right,
}  # fmt: skip
_KERNELS = {1: "flash", 2: "fused", 3: "unfused", 4: "local", 5: "auto"}  # AttnBackend of Megatron-Core
_FORMATS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_YAML_ANCHOR, _YAML_ALIAS = re.compile(r"(?<=[:-] )&\w+[ ]?"), re.compile(r"(?<=[:-] )\*\w+$", re.MULTILINE)


@dataclass
class RecordedCall:
    """A Python call read as data: its name, arguments and the attributes set on its result."""

    name: str
    args: tuple[Any, ...] = ()
    fields: dict[str, Any] = field(default_factory=dict)
    receiver: Any = None


@dataclass(frozen=True)
class UnreadExpression:
    """Source text of a Python expression that is not readable as data."""

    text: str


def known_truth(value: Any) -> bool | None:
    """Return whether a condition read from Python code holds, or None if that is unknown."""
    if isinstance(value, RecordedCall):
        return True if value.name.rpartition(".")[2][:1].isupper() or value.fields else None
    return None if isinstance(value, UnreadExpression) else bool(value)


def require_known_truth(value: Any) -> bool:
    """Return whether a condition read from Python code holds; raise ValueError if that is unknown."""
    if (met := known_truth(value)) is None:
        raise ValueError
    return met


def apply_operator(sign: ast.operator | ast.cmpop, left: Any, right: Any) -> Any:
    """Apply a Python operator to two values; raise an error if one is unknown, too large or unsuitable."""
    none = isinstance(sign, ast.Is | ast.IsNot | ast.Eq | ast.NotEq) and None in (left, right)
    for each in (left, right):
        large = isinstance(each, int | float) and abs(each) > _MAX_NUMBER
        if isinstance(each, UnreadExpression) or (isinstance(each, RecordedCall) and not none) or large:
            raise ValueError
    lengths = [len(each) if isinstance(each, list | str) else each for each in (left, right)]
    joins = lengths != [left, right]
    if joins and isinstance(sign, ast.Add | ast.Mult | ast.Mod) and all(isinstance(each, int) for each in lengths):
        size = lengths[0] * lengths[1] if isinstance(sign, ast.Mult) else lengths[0] + lengths[1]
        if size > _MAX_ITEMS or isinstance(sign, ast.Mod):
            raise ValueError
    return _OPERATORS[type(sign)](left, right)


def _to_dict_key(value: Any, held: Any) -> Any:
    return str(value) if isinstance(held, dict) else value  # keys are stored as text


def parse_argument_values(given: Mapping[str, str]) -> dict[str, Any]:
    """Parse user-given function arguments as Python values: numbers, words, True, False, None."""
    found: dict[str, Any] = {}
    for name, text in given.items():
        try:
            value = ast.literal_eval(text.capitalize() if text.lower() in ("true", "false", "none") else text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            value = text
        found[name.lstrip("-").replace("-", "_")] = value if value is None or isinstance(value, int | float) else text
    return found


def to_plain_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a call as plain values, with ``UnreadExpression`` for computed ones.

    Fields that hold an object of a class, or nothing, and a tokenizer's vocabulary are left to the caller.
    """
    plain = {
        name: _to_plain_value(item) for name, item in fields.items()
        if item is not None and not (name.endswith("vocab_size") and isinstance(item, UnreadExpression | RecordedCall))
    }  # fmt: skip
    return {name: item for name, item in plain.items() if not isinstance(item, RecordedCall)}


def _to_plain_value(value: Any) -> Any:
    if (
        isinstance(value, UnreadExpression)
        and _DOTTED_NAME.fullmatch(value.text)
        and not value.text.startswith(("args.", "self."))
    ):
        return value.text.removeprefix("AttnBackend.")
    if isinstance(value, RecordedCall) and (
        isinstance(value.receiver, RecordedCall) or not value.name.rpartition(".")[2][:1].isupper()
    ):
        return UnreadExpression(f"{value.name}(...)") if not value.fields or value.args else value
    if isinstance(value, list) and any(isinstance(each, UnreadExpression | RecordedCall) for each in value):
        return UnreadExpression(
            ", ".join(each.text if isinstance(each, UnreadExpression) else str(each)[:60] for each in value)
        )
    return value


def parse_written_call(text: str, source: str) -> RecordedCall | None:
    """Return the call that a configuration written by Megatron-Bridge or NeMo-Run holds, or None.

    What several parts share (``&id001``) is read where it is written, and nothing (null) elsewhere.
    """
    if "_target_:" not in text:
        return None
    made = _parse_record(parse_document(_YAML_ANCHOR.sub("", _YAML_ALIAS.sub("null", text)), source=source).data)
    return made if isinstance(made, RecordedCall) else None


def _parse_record(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    name = str(value.get("_target_", "")).rpartition(".")[2]
    if not name:
        return {str(key): _parse_record(each) for key, each in value.items()}
    if value.get("_call_") is False:
        return _FORMATS.get(name) or UnreadExpression(str(value["_target_"]))
    args = tuple(value["_args_"]) if isinstance(value.get("_args_"), list) else ()
    if name == "AttnBackend" and args and args[0] in _KERNELS:
        return UnreadExpression(f"{name}.{_KERNELS[args[0]]}")
    return RecordedCall(
        name, args, {str(key): _parse_record(each) for key, each in value.items() if not str(key).startswith("_")}
    )
