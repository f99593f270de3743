"""Expressions of a configuration in Python, read as data: what has a meaning is a value, all else stays as written."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from simcluster.base.errors import InputError
from simcluster.importers.python_values import NOTHING, Built, Unread, compared, operated, truth

MOST_STEPS = 50_000
MOST_DEPTH = 30
_DEGREE = re.compile(r"((tensor|pipeline|expert)_model|context|expert_tensor)_parallel_size")


class PythonExpressions:
    """The values of expressions; names and calls are those of the file that a subclass reads."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._steps = 0

    def _name(self, node: ast.Name, scope: Mapping[str, Any], depth: int) -> Any:
        raise NotImplementedError

    def _call(self, node: ast.Call, scope: Mapping[str, Any], depth: int) -> Any:
        raise NotImplementedError

    def _variable(self, name: str) -> Any:
        raise NotImplementedError

    def _is_made(self, name: str) -> bool:
        """Is it the name of a function or class, of the file or of those that it imports from?"""
        raise NotImplementedError

    def _value(self, node: ast.expr, scope: Mapping[str, Any], depth: int) -> Any:
        reader = _READERS.get(type(node))
        if reader is None or depth > MOST_DEPTH:
            return Unread(ast.unparse(node)[:200])
        found = reader(self, node, scope, depth + 1)
        return Unread(ast.unparse(node)[:200]) if found is NOTHING else found

    def _attribute(self, node: ast.Attribute, scope: Mapping[str, Any], depth: int) -> Any:
        owner = self._value(node.value, scope, depth)
        one = 1 if _DEGREE.fullmatch(node.attr) else NOTHING  # of what nothing splits
        return owner.fields.get(node.attr, one) if isinstance(owner, Built) else NOTHING

    def _dict(self, node: ast.Dict, scope: Mapping[str, Any], depth: int) -> Any:
        found: dict[str, Any] = {}
        for key, item in zip(node.keys, node.values, strict=True):
            value = self._value(item, scope, depth)
            if key is None:
                found |= value if isinstance(value, dict) else {}
            else:
                found[str(self._value(key, scope, depth))] = value
        return found

    def _list(self, node: ast.List | ast.Tuple, scope: Mapping[str, Any], depth: int) -> Any:
        return [self._value(each, scope, depth) for each in node.elts]

    def _each(self, node: ast.ListComp | ast.DictComp, scope: Mapping[str, Any], depth: int) -> Any:
        """A list or dictionary made of a list by one loop, whose conditions are all decided."""
        loop = node.generators[0]
        items = self._value(loop.iter, scope, depth)
        if len(node.generators) > 1 or not isinstance(items, list):
            return NOTHING
        self._steps += len(items)
        if self._steps > MOST_STEPS:
            raise InputError(f"{self.source}: takes more than {MOST_STEPS:,} steps to read")
        found: list[Any] = []
        for item in items:
            inside = {**scope, **_taken_apart(loop.target, item)}
            met = [truth(self._value(each, inside, depth)) for each in loop.ifs]
            if None in met:
                return NOTHING
            if all(met):
                parts = [node.elt] if isinstance(node, ast.ListComp) else [node.key, node.value]
                found.append([self._value(each, inside, depth) for each in parts])
        return [each for (each,) in found] if isinstance(node, ast.ListComp) else {str(k): v for k, v in found}

    def _operation(self, node: ast.BinOp, scope: Mapping[str, Any], depth: int) -> Any:
        return operated(node.op, self._value(node.left, scope, depth), self._value(node.right, scope, depth))

    def _unary(self, node: ast.UnaryOp, scope: Mapping[str, Any], depth: int) -> Any:
        value = self._value(node.operand, scope, depth)
        if isinstance(node.op, ast.Not):
            met = truth(value)
            return NOTHING if met is None else not met
        return -value if isinstance(node.op, ast.USub) and isinstance(value, int | float) else NOTHING

    def _compare(self, node: ast.Compare, scope: Mapping[str, Any], depth: int) -> Any:
        left, right = self._value(node.left, scope, depth), self._value(node.comparators[0], scope, depth)
        if right is None and isinstance(left, Unread) and self._is_made(left.text):
            left = left.text  # which is not None
        return compared(node.ops[0], left, right) if len(node.ops) == 1 else NOTHING

    def _either(self, node: ast.BoolOp, scope: Mapping[str, Any], depth: int) -> Any:
        value: Any = None
        for each in node.values:
            value = self._value(each, scope, depth)
            met = truth(value)
            if met is None:
                return NOTHING
            if met is isinstance(node.op, ast.Or):
                return value
        return value

    def _chosen(self, node: ast.IfExp, scope: Mapping[str, Any], depth: int) -> Any:
        met = truth(self._value(node.test, scope, depth))
        return NOTHING if met is None else self._value(node.body if met else node.orelse, scope, depth)

    def _item(self, node: ast.Subscript, scope: Mapping[str, Any], depth: int) -> Any:
        held = self._value(node.value, scope, depth)
        if isinstance(held, list | str):
            return self._place_in(held, node.slice, scope, depth)
        key = self._value(node.slice, scope, depth)
        if isinstance(held, Unread) and held.text == "os.environ":
            return self._variable(str(key))
        return held.get(str(key), NOTHING) if isinstance(held, dict) else NOTHING

    def _place_in(self, held: list[Any] | str, node: ast.expr, scope: Mapping[str, Any], depth: int) -> Any:
        """Return an element of a list or a text, or a slice of it; NOTHING where its place is not known."""
        if isinstance(node, ast.Slice):
            parts = (node.lower, node.upper, node.step)
            ends = [None if each is None else self._value(each, scope, depth) for each in parts]
            known = all(each is None or isinstance(each, int) for each in ends) and ends[2] != 0
            return held[ends[0] : ends[1] : ends[2]] if known else NOTHING
        place = self._value(node, scope, depth)
        return held[place] if isinstance(place, int) and -len(held) <= place < len(held) else NOTHING

    def _text(self, node: ast.JoinedStr, scope: Mapping[str, Any], depth: int) -> Any:
        """Return what an f-string of known values comes to."""
        parts = [
            self._value(each.value, scope, depth)
            if isinstance(each, ast.FormattedValue)
            else self._value(each, scope, 0)
            for each in node.values
        ]
        formatted = any(isinstance(each, ast.FormattedValue) and each.format_spec for each in node.values)
        known = all(isinstance(each, str | int | float) for each in parts) and not formatted
        return "".join(map(str, parts)) if known else NOTHING


def _taken_apart(target: ast.expr, item: Any) -> dict[str, Any]:
    """What a loop calls an item, or its parts."""
    names = [each for each in ast.walk(target) if isinstance(each, ast.Name)]
    if isinstance(target, ast.Name):
        return {target.id: item}
    parts = item if isinstance(item, list) and len(item) == len(names) else [Unread(each.id) for each in names]
    return {each.id: part for each, part in zip(names, parts, strict=True)}


_READERS: Mapping[type[ast.expr], Any] = {
    ast.Constant: lambda self, node, scope, depth: node.value,
    ast.Name: lambda self, *given: self._name(*given),
    ast.Attribute: PythonExpressions._attribute,
    ast.Call: lambda self, *given: self._call(*given),
    ast.Dict: PythonExpressions._dict,
    ast.List: PythonExpressions._list,
    ast.Tuple: PythonExpressions._list,
    ast.ListComp: PythonExpressions._each,
    ast.DictComp: PythonExpressions._each,
    ast.BinOp: PythonExpressions._operation,
    ast.UnaryOp: PythonExpressions._unary,
    ast.Compare: PythonExpressions._compare,
    ast.BoolOp: PythonExpressions._either,
    ast.IfExp: PythonExpressions._chosen,
    ast.Lambda: lambda self, node, scope, depth: NOTHING if node.args.args else self._value(node.body, scope, depth),
    ast.Subscript: PythonExpressions._item,
    ast.JoinedStr: PythonExpressions._text,
}
