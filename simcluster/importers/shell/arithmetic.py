"""Whole numbers of a shell, worked out without one."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

_LARGEST = 10**18
_MOST_CHARACTERS = 400
_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: lambda left, right: abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1),
    ast.Mod: lambda left, right: abs(left) % abs(right) * (1 if left >= 0 else -1),
    ast.Pow: lambda left, right: left**right if 0 <= right <= 60 and abs(left) <= 1024 else _LARGEST + 1,
}  # fmt: skip
_COMPARED: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
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
        if len(text) > _MOST_CHARACTERS:
            return None
        return _value(ast.parse(re.sub(r"!(?!=)", " not ", python).strip(), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


def _value(node: ast.AST) -> int:
    result: int | None = None
    match node:
        case ast.Constant(value=int(number)):
            result = int(number)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            result = _BINARY[type(sign)](_value(left), _value(right))
        case ast.UnaryOp(op=sign, operand=operand):
            inner = _value(operand)
            result = -inner if isinstance(sign, ast.USub) else int(not inner) if isinstance(sign, ast.Not) else inner
        case ast.Compare(left=left, ops=[sign], comparators=[right]) if type(sign) in _COMPARED:
            result = int(_COMPARED[type(sign)](_value(left), _value(right)))
        case ast.BoolOp(op=sign, values=values):
            numbers = [_value(value) for value in values]
            result = int(all(numbers) if isinstance(sign, ast.And) else any(numbers))
    if result is None or abs(result) > _LARGEST:
        raise ValueError
    return result
