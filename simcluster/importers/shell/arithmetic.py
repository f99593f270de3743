"""Whole numbers of a shell, worked out without one."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

_LARGEST, _MOST_CHARACTERS = 10**18, 400
_OPERATORS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: lambda left, right: abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1),
    ast.Mod: lambda left, right: abs(left) % abs(right) * (1 if left >= 0 else -1),
    ast.Pow: lambda left, right: left**right if 0 <= right <= 60 and abs(left) <= 1024 else _LARGEST + 1,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip


def worked_out(text: str) -> int | None:
    """Return the value of an expression of whole numbers; None for anything else."""
    condition, question, rest = text.partition("?")
    if question:
        chosen = worked_out(condition)
        return None if chosen is None else worked_out(rest.partition(":")[0 if chosen else 2])
    python = re.sub(r"\b0+(?=\d)", "", text.replace("&&", " and ").replace("||", " or "))
    try:
        tree = (
            ast.parse(re.sub(r"!(?!=)", " not ", python).strip(), mode="eval")
            if len(text) <= _MOST_CHARACTERS
            else None
        )
        return _value(tree.body) if tree else None
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError, KeyError):
        return None


def _value(node: ast.AST) -> int:
    match node:
        case ast.Constant(value=int(result)):
            pass
        case ast.BinOp(left=left, op=sign, right=right) | ast.Compare(left=left, ops=[sign], comparators=[right]):
            result = _OPERATORS[type(sign)](_value(left), _value(right))
        case ast.UnaryOp(op=sign, operand=operand):
            inner = _value(operand)
            result = -inner if isinstance(sign, ast.USub) else int(not inner) if isinstance(sign, ast.Not) else inner
        case ast.BoolOp(op=sign, values=values):
            numbers = [_value(value) for value in values]
            result = all(numbers) if isinstance(sign, ast.And) else any(numbers)
        case _:
            raise ValueError
    if abs(result) > _LARGEST:
        raise ValueError
    return int(result)
