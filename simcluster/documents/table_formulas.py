"""Formulas over the columns of a table in a study file, such as ``gpus // (tp * pp)`` or ``v > 1``.

Arithmetic, comparison, ``a if b else c``, ``and or not in``, ``min max ceil``; no other Python, so that a study file
can compute but has no side effects.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import did_you_mean, join_or

Cell = bool | int | float | str | None
"""The value of a table cell; None if it is empty."""

_MOST_LETTERS = 500
_ARITHMETIC: Mapping[type[ast.operator], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[..., bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
FUNCTIONS: Mapping[str, Callable[..., float]] = {"min": min, "max": max, "ceil": math.ceil}


def column_formula_name(column: str) -> str:
    """Return a table column's name in formulas, such as SeqLen_T for the column "SeqLen (T)"."""
    return re.sub(r"\W+", "_", column).strip("_")


@dataclass(frozen=True, slots=True)
class Formula:
    """Parsed and validated formula; ``column_names`` are the table columns used in the formula."""

    text: str
    column_names: tuple[str, ...]

    def evaluate(self, cells: Mapping[str, Cell]) -> Cell:
        """Evaluate the formula for one table row; ``cells`` holds the row's values by column name in formulas.

        Raises InputError for a name that the row lacks, an empty cell in arithmetic, text where a number is needed, and
        a division by zero.
        """
        try:
            found = _evaluate_node(ast.parse(self.text, mode="eval").body, cells)
        except _FormulaError as problem:
            raise InputError(f"the formula {self.text!r}: {problem}") from None
        if isinstance(found, tuple):
            raise InputError(f"the formula {self.text!r} returns a list; a formula must give one value: change it")
        if isinstance(found, float) and not math.isfinite(found):
            raise InputError(f"the formula {self.text!r} gives {found}, which is not finite: use smaller numbers")
        return whole_float_to_int(found)


def whole_float_to_int(value: Cell) -> Cell:
    """Convert a float with a whole value to int; return any other cell value unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def parse_formula(text: str) -> Formula:
    """Parse a formula; raise InputError for Python syntax that is not allowed in formulas."""
    if len(text) > _MOST_LETTERS:
        raise InputError(f"the formula has {len(text):,} characters; write at most {_MOST_LETTERS}")
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(f"{text!r} is not a formula; write one such as gpus // (tp * pp)") from None
    functions = {id(node.func) for node in ast.walk(body) if isinstance(node, ast.Call)}
    names: dict[str, None] = {}
    for node in ast.walk(body):
        if not _is_allowed_node(node):
            raise InputError(
                f"{text!r}: {ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__} is not allowed "
                "in a formula; use columns, numbers, quoted words, + - * / // %, comparisons, and, or, not, in, "
                "'a if b else c', and min(a, b), max(a, b), ceil(a)"
            )
        if isinstance(node, ast.Name) and id(node) not in functions:
            names[node.id] = None
    return Formula(text.strip(), tuple(names))


def _is_allowed_node(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, bool | int | float | str) or node.value is None
    if isinstance(node, ast.Call):
        known = isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS and not node.keywords
        return known and (len(node.args) == 1 or (bool(node.args) and ast.unparse(node.func) != "ceil"))
    if isinstance(node, ast.BinOp):
        return type(node.op) in _ARITHMETIC
    if isinstance(node, ast.operator):
        return type(node) in _ARITHMETIC
    if isinstance(node, ast.cmpop):
        return type(node) in _COMPARISONS
    kinds = ast.Name | ast.expr_context | ast.UnaryOp | ast.unaryop | ast.BoolOp | ast.boolop | ast.Compare | ast.IfExp
    return isinstance(node, kinds | ast.Tuple | ast.List) and not isinstance(node, ast.Invert)


# --- values -----------------------------------------------------------------------------------------------------------


class _FormulaError(Exception):
    """Error during a formula's evaluation; the caller puts the formula's text in front of the message."""


_FormulaValue = Cell | tuple[Cell, ...]


def _evaluate_node(node: ast.expr, cells: Mapping[str, Cell]) -> _FormulaValue:
    match node:
        case ast.Constant(value=value):
            return value  # type: ignore[return-value]  # _is_allowed has checked its type
        case ast.Name(id=name):
            if name not in cells:
                raise _FormulaError(f"there is no column {name!r}{did_you_mean(name, cells)}; use {join_or(cells)}")
            return cells[name]
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return tuple(_evaluate_scalar(item, cells) for item in items)
        case ast.IfExp(test=test, body=body, orelse=other):
            return _evaluate_node(body if _evaluate_node(test, cells) else other, cells)
        case ast.BoolOp(op=op, values=values):
            truths = (bool(_evaluate_node(each, cells)) for each in values)
            return all(truths) if isinstance(op, ast.And) else any(truths)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluate_node(operand, cells)
        case ast.UnaryOp(op=op, operand=operand):
            number = _evaluate_number(operand, cells)
            return -number if isinstance(op, ast.USub) else number
        case ast.Compare():
            return _evaluate_comparison(node, cells)
        case ast.BinOp(left=left, op=op, right=right):
            try:
                return _ARITHMETIC[type(op)](_evaluate_number(left, cells), _evaluate_number(right, cells))
            except ZeroDivisionError:
                raise _FormulaError(f"{ast.unparse(node)} divides by {ast.unparse(right)}, which is 0 here") from None
            except OverflowError:
                raise _FormulaError(f"{ast.unparse(node)} is too large for a number in this row") from None
        case ast.Call(func=ast.Name(id=name), args=arguments):
            numbers = [_evaluate_number(each, cells) for each in arguments]
            try:
                return FUNCTIONS[name](*numbers) if name == "ceil" else FUNCTIONS[name](numbers)
            except (OverflowError, ValueError):  # of inf, of NaN
                raise _FormulaError(f"{ast.unparse(node)} is not finite in this row") from None
    raise AssertionError(f"internal error: parse_formula should have rejected {ast.dump(node)}")


def _evaluate_comparison(node: ast.Compare, cells: Mapping[str, Cell]) -> bool:
    left = _evaluate_node(node.left, cells)
    for op, comparator in zip(node.ops, node.comparators, strict=True):
        right = _evaluate_node(comparator, cells)
        try:
            if not _COMPARISONS[type(op)](left, right):
                return False
        except TypeError:
            raise _FormulaError(f"{left!r} cannot be compared with {right!r}; use only numbers or texts") from None
        left = right
    return True


def _evaluate_scalar(node: ast.expr, cells: Mapping[str, Cell]) -> Cell:
    value = _evaluate_node(node, cells)
    if isinstance(value, tuple):
        raise _FormulaError("a list inside a list is not allowed; write all items in one list")
    return value


def _evaluate_number(node: ast.expr, cells: Mapping[str, Cell]) -> int | float:
    value = _evaluate_node(node, cells)
    if value is None:
        raise _FormulaError(f"{ast.unparse(node)} is empty in this row; write a number")
    if not isinstance(value, int | float):
        raise _FormulaError(f"{ast.unparse(node)} is {value!r}, but a number is needed")
    return value


# --- formulas of numbers alone ----------------------------------------------------------------------------------------


class FormulaText(str):
    """Text of a formula that was checked to compute with numbers alone."""


def check_numeric(value: object) -> FormulaText:
    """Return the text of a formula; raise InputError unless it computes with numbers alone."""
    text = parse_formula(str(value)).text
    for node in ast.walk(ast.parse(text)) if {*text} & {*"'\"[,N"} else ():
        if isinstance(node, ast.Tuple | ast.List) or isinstance(getattr(node, "value", 0), str | None):
            what = "has a quoted word, a list or None; this formula computes with numbers"
            raise InputError(f"{text!r} {what}: remove it")
    return FormulaText(text)


@lru_cache(maxsize=4096)
def _compile_formula(text: str) -> CodeType:
    return compile(text, "<formula>", "eval")


def evaluate(text: str, names: Mapping[str, float]) -> float:
    """Return the value of a numeric formula; raise InputError if it has none that is finite and at least 0."""
    try:
        found = eval(_compile_formula(text), {"__builtins__": FUNCTIONS}, dict(names))
        finite = 0 <= float(found) < math.inf
    except (ArithmeticError, TypeError, ValueError) as problem:
        raise InputError(f"the formula {text!r} has no value: {problem}") from None
    if not finite:
        raise InputError(f"the formula {text!r} gives {found}, not a finite number of at least 0: change it")
    return float(found) if isinstance(found, bool) else found
