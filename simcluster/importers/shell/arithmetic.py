"""Whole numbers of a shell: ``$((A * B))``, read and worked out without a shell."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

from simcluster.importers.shell.state import State, is_unset, joined

_LARGEST = 10**18
_MOST_CHARACTERS = 400
_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_COMPARED: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_NAME = re.compile(r"[A-Za-z_]\w*")
_LENGTH = re.compile(r"\$\{#(\w+)\[[@*]\]\}")
_ELEMENT = re.compile(r"(?:\$\{)?\b([A-Za-z_]\w*)\[([^\[\]]+)\]\}?")
_VARIABLE = re.compile(r"\$\{(\w+):?-(\w*)\}|\$\{?(\w+)\}?")
_ASSIGNED = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:(\+\+|--)|([-+*/]?)=(?!=)(.*))\s*", re.DOTALL)


def whole_number(text: str, state: State) -> int | None:
    """What the expression comes to; None where a part of it is not known or is no arithmetic of whole numbers."""
    if len(text) > _MOST_CHARACTERS or "$(" in text or "`" in text:
        return None
    text = _LENGTH.sub(lambda found: str(len(state.get(found[1]) or ())), text)
    text = _ELEMENT.sub(lambda found: _element(found[1], found[2], state), text)
    plain = _VARIABLE.sub(lambda found: _named(found[1] or found[3], found[2], state), text)
    filled = _NAME.sub(lambda found: _number_of(found[0], state), plain)
    condition, question, rest = filled.partition("?")
    if question:
        chosen = whole_number(condition, state)
        return None if chosen is None else whole_number(rest.partition(":")[0 if chosen else 2], state)
    python = filled.replace("&&", " and ").replace("||", " or ")
    python = re.sub(r"!(?!=)", " not ", re.sub(r"\b0+(?=\d)", "", python))
    try:
        return _worked_out(ast.parse(python.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


def _element(name: str, index: str, state: State) -> str:
    """The element of an array that is a whole number; a word that is none otherwise."""
    value = state.get(name)
    place = whole_number(index, state) if isinstance(value, list) else None
    if isinstance(value, list) and place is not None and -len(value) <= place < len(value):
        found = value[place]
    else:
        found = state.keyed(name).get(index.strip("\"'"), "")
    return f"({found})" if re.fullmatch(r"-?\d{1,18}", found) else " $ "


def _named(name: str, otherwise: str | None, state: State) -> str:
    """A variable, the default that stands with it, or the value of an argument."""
    value = state.get(name)
    if otherwise and (value is None or is_unset(value)):
        return otherwise
    return name if not name.isdecimal() else joined(value) if value is not None else f"${name}"


def _number_of(name: str, state: State) -> str:
    value = state.get(name)
    text = joined(value).strip() if value is not None else ""
    return f"({text})" if re.fullmatch(r"-?\d{1,18}", text) else f" {name} "


def _worked_out(node: ast.AST) -> int:
    """Raises ValueError for anything but whole numbers and their operators."""
    result: int | None = None
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        result = int(node.value)
    elif isinstance(node, ast.BinOp):
        left, right = _worked_out(node.left), _worked_out(node.right)
        if type(node.op) in _BINARY:
            result = _BINARY[type(node.op)](left, right)
        elif isinstance(node.op, ast.Div):
            result = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        elif isinstance(node.op, ast.Mod):
            result = abs(left) % abs(right) * (1 if left >= 0 else -1)
        elif isinstance(node.op, ast.Pow) and 0 <= right <= 60 and abs(left) <= 1024:
            result = int(left**right)
    elif isinstance(node, ast.UnaryOp):
        inner = _worked_out(node.operand)
        result = -inner if isinstance(node.op, ast.USub) else int(not inner) if isinstance(node.op, ast.Not) else inner
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        result = int(_COMPARED[type(node.ops[0])](_worked_out(node.left), _worked_out(node.comparators[0])))
    elif isinstance(node, ast.BoolOp):
        values = [_worked_out(value) for value in node.values]
        result = int(all(values) if isinstance(node.op, ast.And) else any(values))
    if result is None or abs(result) > _LARGEST:
        raise ValueError
    return result


def assign(text: str, state: State) -> int | None:
    """What ``((...))`` or ``let`` says: assigns, if it does, and gives the value."""
    found = _ASSIGNED.fullmatch(text)
    if not found:
        return whole_number(text, state)
    name, step, sign, right = found.groups()
    expression = f"{name} {step[0]} 1" if step else f"{name} {sign} ({right})" if sign else right
    value = whole_number(expression, state)
    if name not in state.fixed:
        state.put(name, str(value) if value is not None else f"$(({name}))")
    return value


def counting(text: str) -> tuple[str, str, str]:
    """Where a ``for ((...; ...; ...))`` begins, how long it goes on and how it steps; empty where it says nothing."""
    parts = [part.strip() for part in text.partition("((")[2].partition("))")[0].split(";")]
    begin, condition, step = parts if len(parts) == 3 else ("", "", "")
    return begin, condition, step
