"""Values of a configuration in Python that is read as data, and what operators make of them."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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
    """Whether a condition is met; None where that is not known."""
    return None if isinstance(value, Unread) else True if isinstance(value, Built) else bool(value)


def operated(sign: ast.operator, left: Any, right: Any) -> Any:
    """Sums, products and joined lists and texts; NOTHING of other operands."""
    if isinstance(left, int) and isinstance(right, int):
        operators: dict[type[ast.operator], Callable[[int, int], int]] = {
            ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul
        }  # fmt: skip
        if isinstance(sign, ast.FloorDiv) and right:
            return left // right
        return operators[type(sign)](left, right) if type(sign) in operators else NOTHING
    if isinstance(sign, ast.Add) and isinstance(left, list) and isinstance(right, list):
        return left + right
    if isinstance(sign, ast.Add) and isinstance(left, str) and isinstance(right, str):
        return left + right
    if isinstance(sign, ast.Mult) and isinstance(left, list) and isinstance(right, int) and right < 10_000:
        return left * right
    return NOTHING


def compared(sign: ast.cmpop, left: Any, right: Any) -> Any:
    """Whether a comparison holds; NOTHING of operands that cannot be compared."""
    if isinstance(left, Unread) or isinstance(right, Unread):
        return NOTHING
    if isinstance(sign, ast.Is | ast.Eq):
        return left == right
    if isinstance(sign, ast.IsNot | ast.NotEq):
        return left != right
    if isinstance(sign, ast.In | ast.NotIn) and isinstance(right, list | dict | str):
        inside = str(left) in right if isinstance(right, dict) or isinstance(left, str) else left in list(right)
        return inside is isinstance(sign, ast.In)
    if isinstance(left, int | float) and isinstance(right, int | float):
        if isinstance(sign, ast.Gt):
            return left > right
        return left < right if isinstance(sign, ast.Lt) else NOTHING
    return NOTHING
