"""Parser of Python lists with one number per layer (``[0]*3+[1]*58``), and fields for the layers with experts.

Megatron-LM evaluates them (arguments.py, ``moe_freq_type``); here only brackets, +, * and whole numbers are allowed.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from simcluster.base.errors import InputError

MAX_LAYERS = 100_000
"""Maximum length of a list of layers."""
_MAX_CHARACTERS, _MAX_DEPTH, _MAX_NUMBER = 10_000, 20, 10**9

NumberOrLayerList = int | list[int]


def parse_layer_list(text: str) -> NumberOrLayerList:
    """Parse a number or a list with one number per layer, written in Python notation.

    Raises InputError for anything else, and for a list of more than MAX_LAYERS numbers before it is made.
    """
    if len(text) > _MAX_CHARACTERS:
        raise InputError(f"is longer than {_MAX_CHARACTERS:,} characters")
    nested = max(accumulate(((each in "([") - (each in ")]") for each in text), initial=0)) > _MAX_DEPTH
    try:
        if strange := re.search(r"[^\d\s()+*,\[\]]", text):
            raise ValueError(f"{strange[0]!r} is not allowed")
        if nested or re.search(r"\d{10}", text):
            raise ValueError(f"nested more than {_MAX_DEPTH} deep" if nested else "a number of more than 9 digits")
        return _evaluate_layer_node(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
        what = str(problem) if type(problem) is ValueError else "invalid brackets or operators"
        raise InputError(f"{text[:60]!r} is not a list of layers ({what}); write a list as in ([0]*3+[1]*58)") from None


def _evaluate_layer_node(node: ast.expr) -> NumberOrLayerList:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.List(elts=parts):
            numbers = [each for part in parts if isinstance(each := _evaluate_layer_node(part), int)]
            if len(numbers) < len(parts):
                raise ValueError("a list inside a list is not supported")
            return numbers
        case ast.BinOp(left=left, op=ast.Add() | ast.Mult() as sign, right=right):
            one, other, adds = _evaluate_layer_node(left), _evaluate_layer_node(right), isinstance(sign, ast.Add)
            lists = [each for each in (one, other) if isinstance(each, list)]
            times = [each for each in (one, other) if isinstance(each, int)]
            if not lists:
                if (result := sum(times) if adds else math.prod(times)) > _MAX_NUMBER:
                    raise ValueError("a number of more than 9 digits")
                return result
            if adds == bool(times):
                raise ValueError("a list inside a list is not supported")
            if sum(map(len, lists)) * math.prod(times) > MAX_LAYERS:
                raise ValueError(f"more than {MAX_LAYERS:,} layers")
            return [number for part in lists for number in part] * math.prod(times)
    raise ValueError("invalid brackets or operators")


def check_layer_list(key: str, values: Any, layers: int, known: Sequence[Any]) -> list[Any]:
    """Return a list with one of the ``known`` values for each layer; raise InputError for anything else."""
    if layers > MAX_LAYERS:
        raise InputError(f"{layers:,} layers are too many; at most {MAX_LAYERS:,} are supported")
    if not isinstance(values, list) or len(values) != layers or any(each not in known for each in values):
        what = "words" if isinstance(known[0], str) else "numbers"
        raise InputError(f"{key} must be a list of {layers} {what}, each {' or '.join(map(str, known))}")
    return values


def describe_expert_layers(has_experts: Sequence[bool]) -> dict[str, int] | None:
    """Return ``first_dense_layers``, ``every`` and ``offset`` of ``Moe`` for the layers that have experts.

    Defaults are omitted; None if experts are in no layer, or not in every n-th after the first dense ones.
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


def describe_layer_types(words: Sequence[str], types: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return ``pattern`` and ``layer_types`` of a model, given each layer's word and what the words change."""
    borders = [0]  # of each prefix, the longest proper prefix that is a suffix, too (Knuth, Morris and Pratt)
    for word in words[1:]:
        size = borders[-1]
        while size and words[size] != word:
            size = borders[size - 1]
        borders.append(size + (words[size] == word))
    period = words[: len(words) - borders[-1]]
    letters = all(len(word) == 1 for word in period)
    return {
        "pattern": "".join(period) if letters else list(period),
        "layer_types": {word: dict(types[word]) for word in dict.fromkeys(period)},
    }
