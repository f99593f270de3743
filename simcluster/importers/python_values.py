"""Values of a configuration in Python that is read as data, and what operators make of them."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeGuard

_NAMED = re.compile(r"[\w.]+")
NOTHING = object()
"""What an expression gives that has no meaning here."""


@dataclass
class Built:
    """What a call would make: the ``name`` that is called, what stands in its brackets, and attributes set since.

    ``of`` is what the call is a method of.
    """

    name: str
    args: tuple[Any, ...] = ()
    fields: dict[str, Any] = field(default_factory=dict)
    of: Any = None


@dataclass(frozen=True)
class Unread:
    """An expression that is not data, as it is written."""

    text: str


def truth(value: Any) -> bool | None:
    """Whether a condition is met; None where that is not known, as of what a function returns that is not read."""
    if isinstance(value, Built):
        return True if value.name.rpartition(".")[2][:1].isupper() or value.fields else None
    return None if isinstance(value, Unread) else bool(value)


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.BitXor: operator.xor,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Lt: operator.lt, ast.LtE: operator.le
}  # fmt: skip


def operated(sign: ast.operator, left: Any, right: Any) -> Any:
    """Sums, products and joined lists and texts; NOTHING of other operands."""
    if isinstance(left, int | float) and isinstance(right, int | float):
        divides = isinstance(sign, ast.Div | ast.FloorDiv | ast.Mod)
        if type(sign) not in _OPERATORS or (divides and not right):
            return NOTHING
        if isinstance(sign, ast.Pow) and not (abs(left) < 10_000 and 0 <= right < 64):
            return NOTHING
        return _OPERATORS[type(sign)](left, right)
    if isinstance(sign, ast.Add) and isinstance(left, list) and isinstance(right, list):
        return left + right
    if isinstance(sign, ast.Add) and isinstance(left, str) and isinstance(right, str):
        return left + right
    if isinstance(sign, ast.Mult) and isinstance(left, list) and isinstance(right, int) and right < 10_000:
        return left * right
    return NOTHING


def compared(sign: ast.cmpop, left: Any, right: Any) -> Any:
    """Whether a comparison holds; NOTHING of operands that cannot be compared."""
    made = any(isinstance(each, Built) for each in (left, right)) and not (
        isinstance(sign, ast.Is | ast.IsNot) and (left is None or right is None)
    )
    if made or isinstance(left, Unread) or isinstance(right, Unread):
        return NOTHING
    if isinstance(sign, ast.Is | ast.Eq):
        return left == right
    if isinstance(sign, ast.IsNot | ast.NotEq):
        return left != right
    if isinstance(sign, ast.In | ast.NotIn) and isinstance(right, list | dict | str):
        inside = str(left) in right if isinstance(right, dict) or isinstance(left, str) else left in list(right)
        return inside is isinstance(sign, ast.In)
    if isinstance(left, int | float) and isinstance(right, int | float) and type(sign) in _COMPARED:
        return _COMPARED[type(sign)](left, right)
    return NOTHING


_OF_NUMBERS: dict[str, Any] = {"max": max, "min": min, "sum": sum}
_KINDS: dict[str, Any] = {"str": str, "int": int, "list": list, "dict": dict, "bool": bool, "tuple": list}


def called_builtin(name: str, args: list[Any], named: dict[str, Any]) -> Any:
    """What a function of Python itself returns; NOTHING of others."""
    first = args[0] if args else None
    if name in ("replace", "dataclasses.replace") and isinstance(first, Built):
        return Built(first.name, first.args, {**first.fields, **named}, first.of)
    if name in ("cast", "typing.cast") and len(args) == 2:
        return args[1]
    if name == "dict" and not args:
        return named
    if name in ("list", "tuple", "copy.deepcopy", "deepcopy") and len(args) == 1:
        return deepcopy(first) if isinstance(first, list | Built | dict) else NOTHING
    if name == "getattr" and len(args) == 3 and isinstance(first, Built):
        return first.fields.get(str(args[1]), args[2])
    if name == "getattr" and len(args) == 2 and isinstance(first, Built):
        return first.fields.get(str(args[1]), NOTHING)
    if name == "getattr" and len(args) == 2 and isinstance(first, Unread) and isinstance(args[1], str):
        return Unread(f"{first.text}.{args[1]}")  # of a module
    if name == "setattr" and len(args) == 3 and isinstance(first, Built):
        first.fields[str(args[1])] = args[2]
        return None
    if name == "vars" and len(args) == 1 and isinstance(first, Built):
        return dict(first.fields)
    if name == "hasattr" and len(args) == 2 and isinstance(first, Built) and str(args[1]) in first.fields:
        return True
    if name == "isinstance" and len(args) == 2 and not isinstance(first, Unread):
        named_kind = getattr(args[1], "text", "")
        if isinstance(first, Built) and named_kind not in _KINDS:  # what a function makes is taken to be of the class
            own, asked = first.name.rpartition(".")[2], named_kind.rpartition(".")[2]
            return True if own == asked or own[:1].islower() else NOTHING
        other = named_kind.rpartition(".")[2][:1].isupper()  # a class, of which no plain value is
        return isinstance(first, _KINDS[named_kind]) if named_kind in _KINDS else False if other else NOTHING
    if name == "bool" and len(args) == 1 and (met := truth(first)) is not None:
        return met
    numbers = first if len(args) == 1 else args
    if name in _OF_NUMBERS and numbers and isinstance(numbers, list) and all(map(is_number, numbers)):
        return _OF_NUMBERS[name](*args)
    if name == "len" and len(args) == 1 and isinstance(first, list | dict | str):
        return len(first)
    if name == "int" and len(args) == 1 and (isinstance(first, int | float) or _is_digits(first)):
        return int(first or 0)
    if name == "os.path.basename" and len(args) == 1 and isinstance(first, str):
        return first.rpartition("/")[2]
    if name == "range" and 1 <= len(args) <= 2 and all(isinstance(each, int) and each < 10_000 for each in args):
        return list(range(*args))
    if name == "field" and isinstance(named.get("default_factory"), list | int | str):
        return named["default_factory"]  # of a lambda without arguments
    return NOTHING


def is_number(value: Any) -> bool:
    """Return whether a value is a number, and neither True nor False."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_digits(value: Any) -> bool:
    return isinstance(value, str) and len(value) < 16 and value.isascii() and value.isdecimal()


_OF_TEXTS = ("lower", "upper", "strip", "startswith", "endswith", "replace")


def called_of(held: dict[str, Any] | list[Any] | str, method: str, args: list[Any]) -> Any:
    """What a method of a dictionary, a list or a text does and returns, as far as one is known here."""
    if isinstance(held, str):
        known = method in _OF_TEXTS and all(isinstance(each, str) for each in args)
        return getattr(held, method)(*args) if known else NOTHING
    if isinstance(held, list):
        if method == "append" and len(args) == 1:
            held.append(args[0])
        elif method == "extend" and len(args) == 1 and isinstance(args[0], list):
            held.extend(args[0])
        return None
    if method == "items" and not args:
        return [[key, value] for key, value in held.items()]
    if method in ("get", "pop") and args:
        return held.get(str(args[0]), args[1] if len(args) > 1 else None)
    if method == "update" and args and isinstance(args[0], dict):
        held.update(args[0])
    return None


def is_configured(args: Sequence[Any]) -> bool:
    """Whether a configuration is handed to a function, which may change it."""
    return any(isinstance(each, Built) and each.fields for each in args)


def changed_by(node: ast.If | ast.For, idle: Callable[[str], bool]) -> list[str] | None:
    """Return what a statement sets of a configuration that is not ``idle``; None where it does nothing to one.

    It may also pass a configuration to a function, or return one.
    """
    parts = [each for body in (node.body, node.orelse) for part in body for each in ast.walk(part)]
    targets = [each for part in parts if isinstance(part, ast.Assign) for each in part.targets]
    targets += [part.target for part in parts if isinstance(part, ast.AugAssign)]
    targets = [each for each in targets if not (isinstance(each, ast.Attribute) and idle(ast.unparse(each)))]
    names = [ast.unparse(each) for each in targets if isinstance(each, ast.Attribute | ast.Subscript)]
    names += [f"{ast.unparse(part.value).partition('(')[0]}()" for part in parts if _hands_on(part)]
    return names or ([] if any(isinstance(part, ast.Return) for part in parts) else None)


def _hands_on(node: ast.AST) -> TypeGuard[ast.Expr]:
    call = node.value if isinstance(node, ast.Expr) else None
    named = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id != "print"
    return named and isinstance(call, ast.Call) and any(isinstance(each, ast.Attribute) for each in call.args)


def sets_what_it_asks(node: ast.If) -> bool:
    """Whether a test asks if there is an attribute, and what is done then sets that one alone: it has that value where
    it is there."""
    tests = node.test.values if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And) else [node.test]
    asks, body = tests[0], node.body[0]
    if not (isinstance(asks, ast.Call) and ast.unparse(asks.func) == "hasattr" and len(asks.args) == 2):
        return False
    asked = f"{ast.unparse(asks.args[0])}.{getattr(asks.args[1], 'value', '')}"
    if node.orelse or len(node.body) > 1 or not isinstance(body, ast.Assign) or len(body.targets) > 1:
        return False
    off = isinstance(body.value, ast.Constant) and not body.value.value  # also where it is off before
    return ast.unparse(body.targets[0]) == asked and (
        len(tests) == 1 or (off and all(ast.unparse(each) == asked for each in tests[1:]))
    )


def plain_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields as plain values, in words where they name something, and as Unread where they are worked out.

    Parts that an object of a class holds are left to the caller, and so is the vocabulary of a tokenizer.
    """
    said = {
        name: item for name, item in fields.items()
        if item is not None and not (name.endswith("vocab_size") and isinstance(item, Unread | Built))
    }  # fmt: skip
    plain = {name: _word(item) for name, item in said.items()}
    return {name: item for name, item in plain.items() if not isinstance(item, Built)}


def _word(value: Any) -> Any:
    """Return a name as a text, of an enumeration's member its own, and a call of a function as what it is not: read."""
    if isinstance(value, Unread) and _NAMED.fullmatch(value.text):
        return value.text.removeprefix("AttnBackend.")
    if isinstance(value, Built) and (value.of is not None or not value.name.rpartition(".")[2][:1].isupper()):
        return Unread(f"{value.name}(...)") if not value.fields or value.args else value
    if isinstance(value, list) and any(isinstance(each, Unread | Built) for each in value):
        return Unread(", ".join(each.text if isinstance(each, Unread) else str(each)[:60] for each in value))
    return value
