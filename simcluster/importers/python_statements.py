"""Statements of a configuration in Python, read as data: assignments, conditions that can be decided, and loops over
what is known."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import listed
from simcluster.importers.python_constants import Constants
from simcluster.importers.python_expressions import MOST_STEPS, PythonExpressions
from simcluster.importers.python_values import (
    NOTHING,
    Built,
    Unread,
    changed_by,
    is_configured,
    sets_what_it_asks,
    truth,
)


class PythonStatements(PythonExpressions):
    """What statements do to the names of a scope; ``undecided`` is what is not known of them, in words."""

    constants: Constants

    def __init__(self, source: str, idle: Callable[[str], bool]) -> None:
        """``idle`` says of an attribute, as it is written, that nothing is lost where it is not known."""
        super().__init__(source)
        self.undecided: list[str] = []
        self._idle = idle

    def missing_module(self, name: str) -> str:
        """The module that a function comes of and that is not there; empty where no import says it."""
        raise NotImplementedError

    def _body(self, body: Sequence[ast.stmt], scope: dict[str, Any], depth: int) -> tuple[bool, Any]:
        """Whether it returns, and what."""
        for node in body:
            self._steps += 1
            if self._steps > MOST_STEPS:
                raise InputError(f"{self.source}: takes more than {MOST_STEPS:,} steps to read")
            if isinstance(node, ast.Return):
                return True, self._value(node.value, scope, depth) if node.value else None
            if isinstance(node, ast.Assign | ast.AnnAssign):
                self._assign(node, scope, depth)
            elif isinstance(node, ast.If):
                met = truth(self._value(node.test, scope, depth))
                met = True if met is None and sets_what_it_asks(node) else met
                if met is None and (changed := changed_by(node, self._idle)) is not None:
                    self._undecided(f"where {ast.unparse(node.test)}", changed)
                done, value = self._body(node.body if met else node.orelse if met is False else [], scope, depth)
                if done:
                    return True, value
            elif isinstance(node, ast.Continue | ast.Break):
                return True, node
            elif isinstance(node, ast.For):
                done, value = self._loop(node, scope, depth)
                if done:
                    return True, value
            elif isinstance(node, ast.AugAssign):
                now = self._operation(ast.BinOp(node.target, node.op, node.value), scope, depth)
                self._put(node.target, Unread(ast.unparse(node)) if now is NOTHING else now, scope, depth, "")
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                made = self._value(node.value, scope, depth)
                known = node.value.func
                if isinstance(made, Built) and isinstance(known, ast.Name) and is_configured(made.args):
                    module = self.missing_module(known.id)
                    of = f" of {module}, which is not beside it" if module else ""
                    self.undecided.append(f"in {ast.unparse(node.value)}"[:100] + of)
            elif isinstance(node, ast.With | ast.Try):
                done, value = self._body(node.body, scope, depth)
                if done:
                    return True, value
        return False, None

    def _undecided(self, what: str, changed: Sequence[str]) -> None:
        """Take down a statement that is not decided, with the settings that it changes."""
        names = dict.fromkeys(name.rpartition(".")[2] for name in changed)
        self.undecided.append(f"{what[:100]}{f' (it changes {listed(names)[:200]})' if names else ''}")

    def _loop(self, node: ast.For, scope: dict[str, Any], depth: int) -> tuple[bool, Any]:
        """A loop over what is known, and whether it returns, and what; one over what is not is told of."""
        items = self._value(node.iter, scope, depth)
        if not isinstance(items, list):
            what = f"in the loop for {ast.unparse(node.target)} in {ast.unparse(node.iter)}"
            self._undecided(what, changed_by(node, self._idle) or [])
            return False, None
        for item in items:
            self._put(node.target, item, scope, depth, ast.unparse(node.iter))
            done, value = self._body(node.body, scope, depth)
            if isinstance(value, ast.Break):
                break
            if done and not isinstance(value, ast.Continue):
                return True, value
        return False, None

    def _assign(self, node: ast.Assign | ast.AnnAssign, scope: dict[str, Any], depth: int) -> None:
        if node.value is None:
            return
        value = self._value(node.value, scope, depth)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            self._put(target, value, scope, depth, ast.unparse(node.value))

    def _put(self, target: ast.expr, value: Any, scope: dict[str, Any], depth: int, text: str) -> None:
        """A value where it is assigned to; ``text`` is what it is written as."""
        if isinstance(target, ast.Name):
            scope[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self._owner(target.value, scope)
            if owner is not None:
                owner.fields[target.attr] = value
        elif isinstance(target, ast.Subscript):
            held = self._changed(target.value, scope, depth)
            if isinstance(held, dict):
                held[str(self._value(target.slice, scope, depth))] = value
        elif isinstance(target, ast.Tuple):
            parts = value if isinstance(value, list) and len(value) == len(target.elts) else None
            for place, each in enumerate(target.elts):
                self._put(each, parts[place] if parts else Unread(text), scope, depth, text)

    def _changed(self, node: ast.expr, scope: Mapping[str, Any], depth: int) -> Any:
        """What is changed in its place: a dictionary, too, that a configuration has of itself, which is made here."""
        held = self._value(node, scope, depth)
        if isinstance(node, ast.Attribute) and isinstance(held, Unread):
            owner = self._value(node.value, scope, depth)
            if isinstance(owner, Built) and node.attr not in owner.fields:
                held = owner.fields[node.attr] = {}
        return held

    def _owner(self, node: ast.expr, scope: dict[str, Any]) -> Built | None:
        """What an attribute is set of, made where it is not there yet."""
        if isinstance(node, ast.Name):
            found = scope[node.id] if node.id in scope else self.constants.get(node.id)
            if not isinstance(found, Built):
                found = scope[node.id] = Built(node.id)
            return found
        if isinstance(node, ast.Attribute):
            above = self._owner(node.value, scope)
            if above is None:
                return None
            inner = above.fields.get(node.attr)
            if not isinstance(inner, Built):
                said = (inner,) if isinstance(inner, str | Unread) else ()
                inner = above.fields[node.attr] = Built(node.attr, said)
            return inner
        return None
