"""Values and calls read, without running code, from Python source or configurations that frameworks write."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from simcluster.documents.yaml_documents import parse_document

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
    """A Python call that is recorded instead of run: its name, arguments, and attributes set on its result."""

    name: str
    args: tuple[Any, ...] = ()
    fields: dict[str, Any] = field(default_factory=dict)
    called_on: Any = None


@dataclass(frozen=True)
class UnreadExpression:
    """Source text of a Python expression that the reader cannot evaluate."""

    text: str


def truth_if_known(value: Any) -> bool | None:
    """Return the truth value of a condition in Python code; None if the condition's value is unknown."""
    if isinstance(value, RecordedCall):
        return True if value.name.rpartition(".")[2][:1].isupper() or value.fields else None
    return None if isinstance(value, UnreadExpression) else bool(value)


def require_truth(value: Any) -> bool:
    """Return the truth value of a condition in Python code; raise ValueError if the condition is unknown."""
    if (met := truth_if_known(value)) is None:
        raise ValueError
    return met


def apply_operator(op: ast.operator | ast.cmpop, left: Any, right: Any) -> Any:
    """Apply a Python operator to two values; raise ValueError if a value is unknown or too large."""
    none = isinstance(op, ast.Is | ast.IsNot | ast.Eq | ast.NotEq) and None in (left, right)
    for each in (left, right):
        large = isinstance(each, int | float) and abs(each) > _MAX_NUMBER
        if isinstance(each, UnreadExpression) or (isinstance(each, RecordedCall) and not none) or large:
            raise ValueError
    lengths = [len(each) if isinstance(each, list | str) else each for each in (left, right)]
    joins = lengths != [left, right]
    if joins and isinstance(op, ast.Add | ast.Mult | ast.Mod) and all(isinstance(each, int) for each in lengths):
        size = lengths[0] * lengths[1] if isinstance(op, ast.Mult) else lengths[0] + lengths[1]
        if size > _MAX_ITEMS or isinstance(op, ast.Mod):
            raise ValueError
    return _OPERATORS[type(op)](left, right)


def _to_dict_key(value: Any, container: Any) -> Any:
    return str(value) if isinstance(container, dict) else value  # keys are stored as text


def parse_argument_values(given: Mapping[str, str]) -> dict[str, Any]:
    """Parse function arguments given as texts: numbers, True, False and None; other texts stay as they are."""
    found: dict[str, Any] = {}
    for name, text in given.items():
        try:
            value = ast.literal_eval(text.capitalize() if text.lower() in ("true", "false", "none") else text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            value = text
        found[name.lstrip("-").replace("-", "_")] = value if value is None or isinstance(value, int | float) else text
    return found


def to_plain_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a recorded call's fields to plain values; computed ones become ``UnreadExpression``.

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
        isinstance(value.called_on, RecordedCall) or not value.name.rpartition(".")[2][:1].isupper()
    ):
        return UnreadExpression(f"{value.name}(...)") if not value.fields or value.args else value
    if isinstance(value, list) and any(isinstance(each, UnreadExpression | RecordedCall) for each in value):
        texts = (each.text if isinstance(each, UnreadExpression) else str(each)[:60] for each in value)
        return UnreadExpression(", ".join(texts))
    return value


def parse_target_config(text: str, source: str) -> RecordedCall | None:
    """Parse a configuration written by Megatron-Bridge or NeMo-Run as a recorded call; None for any other text.

    What several parts share (``&id001``) is read where it is written, and nothing (null) elsewhere.
    """
    if "_target_:" not in text:
        return None
    made = _parse_target_record(parse_document(_YAML_ANCHOR.sub("", _YAML_ALIAS.sub("null", text)), source=source).data)
    return made if isinstance(made, RecordedCall) else None


def _parse_target_record(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    name = str(value.get("_target_", "")).rpartition(".")[2]
    if not name:
        return {str(key): _parse_target_record(each) for key, each in value.items()}
    if value.get("_call_") is False:
        return _FORMATS.get(name) or UnreadExpression(str(value["_target_"]))
    args = tuple(value["_args_"]) if isinstance(value.get("_args_"), list) else ()
    if name == "AttnBackend" and args and args[0] in _KERNELS:
        return UnreadExpression(f"{name}.{_KERNELS[args[0]]}")
    fields = {str(key): _parse_target_record(each) for key, each in value.items() if not str(key).startswith("_")}
    return RecordedCall(name, args, fields)
