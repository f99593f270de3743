"""Lists of a number for each layer, as Python would write them (``[0]*3+[1]*58``), and which layers have experts.

Megatron-LM evaluates them (arguments.py, ``moe_freq_type``); here only brackets, +, * and whole numbers have a meaning.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from itertools import accumulate

from simcluster.base.errors import InputError

MOST_LAYERS = 100_000
"""Beyond it no list of layers is made."""
_MOST_CHARACTERS, _MOST_DEPTH, _MOST_NUMBER = 10_000, 20, 10**9

Value = int | list[int]


def parse_layer_list(text: str) -> Value:
    """Return the number, or the list of numbers, that the text stands for.

    Raises InputError for anything else, and for a list of more than MOST_LAYERS numbers before it is made.
    """
    if len(text) > _MOST_CHARACTERS:
        raise InputError(f"is longer than {_MOST_CHARACTERS:,} characters")
    nested = max(accumulate(((each in "([") - (each in ")]") for each in text), initial=0)) > _MOST_DEPTH
    if strange := re.search(r"[^\d\s()+*,\[\]]", text):
        raise _error(text, f"{strange[0]!r} has no meaning in it")
    if nested or re.search(r"\d{10}", text):
        raise _error(text, f"nested more than {_MOST_DEPTH} deep" if nested else "a number of more than 9 digits")
    try:
        return _value(ast.parse(text.strip(), mode="eval").body, text)
    except InputError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _error(text, "brackets or signs do not fit") from None


def _value(node: ast.expr, text: str) -> Value:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.List(elts=parts):
            return [_number(_value(part, text), text) for part in parts]
        case ast.BinOp(left=left, op=ast.Add() | ast.Mult() as sign, right=right):
            return _joined(_value(left, text), _value(right, text), text, adds=isinstance(sign, ast.Add))
    raise _error(text, "brackets or signs do not fit")


def _joined(one: Value, other: Value, text: str, *, adds: bool) -> Value:
    """Return a sum or a product; InputError where that is too large, and for what are not numbers or lists of them."""
    lists = [each for each in (one, other) if isinstance(each, list)]
    if len(lists) == (2 if adds else 1):
        times = 1 if adds else next(each for each in (one, other) if isinstance(each, int))
        if sum(map(len, lists)) * times > MOST_LAYERS:
            raise _error(text, f"more than {MOST_LAYERS:,} layers")
        return [number for part in lists for number in part] * times
    first, second = _number(one, text), _number(other, text)
    result = first + second if adds else first * second
    if result > _MOST_NUMBER:
        raise _error(text, "a number of more than 9 digits")
    return result


def _number(value: Value, text: str) -> int:
    if isinstance(value, list):
        raise _error(text, "a list in a list")
    return value


def _error(text: str, what: str) -> InputError:
    return InputError(f"{text[:60]!r} is no list of layers ({what}); write one as in ([0]*3+[1]*58)")


def places(has_experts: Sequence[bool]) -> dict[str, int] | None:
    """Return which layers have experts, in their order, as ``first_dense_layers``, ``every`` and ``offset`` of ``Moe``.

    Defaults are left out; None where experts are in no layer, or not in every n-th behind the first dense ones.
    """
    found = [number for number, here in enumerate(has_experts) if here]
    if not found:
        return None
    every = found[1] - found[0] if len(found) > 1 else len(has_experts)
    if found != list(range(found[0], len(has_experts), every)):
        return None
    first = found[0] if found[0] >= every else 0
    fields = {"first_dense_layers": first, "every": every, "offset": (found[0] + 1) % every}
    return {name: value for name, value in fields.items() if value != (name == "every")}
