"""Recipes in Python, read as data.  Nothing is imported or run.

Literals, arithmetic, keyword arguments, dotted assignments, functions of the same file with their defaults, and tests
on known values have a meaning.  Any other expression stays as it is written (``Unread``), and so does what another file
holds: the caller asks for the configuration that the framework writes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from types import MappingProxyType
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import did_you_mean, listed
from simcluster.importers.python_values import Built, Unread, operated, truth

NONE_GIVEN: Mapping[str, str] = MappingProxyType({})
SCRIPT = "the script"
"""The name of what a file does where it is started."""
_DEGREE = re.compile(r"((tensor|pipeline|expert)_model|context|expert_tensor)_parallel_size")
_MOST_CHARACTERS, _MOST_STEPS, _MOST_DEPTH = 500_000, 50_000, 30


class RecipeFile:
    """The functions of one file by name; ``read`` gives what one of them returns, or starts."""

    def __init__(
        self,
        text: str,
        source: str,
        *,
        known: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
        idle: Callable[[str], bool] = lambda attribute: False,
    ) -> None:
        """``known`` are functions of other files by name; of an ``idle`` attribute nothing is lost if it is unread."""
        if len(text) > _MOST_CHARACTERS:
            raise InputError(f"{source}: has more than {_MOST_CHARACTERS:,} characters, which no recipes have")
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
            line = f":{problem.lineno}" if isinstance(problem, SyntaxError) and problem.lineno else ""
            what = problem.msg if isinstance(problem, SyntaxError) else str(problem)[:100]
            raise InputError(f"{source}{line}: is not Python: {what}; mend that line, or take the whole file") from None
        self.source, self._known, self._idle = source, known, idle
        self.functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self._modules = {
            each.asname or each.name: f"{node.module or '.'}.{each.name}"
            for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for each in node.names
        }  # fmt: skip
        self._main = [node for node in tree.body if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)]
        self._depth = self._steps = 0
        self.undecided: dict[str, None] = {}
        self._constants: dict[str, Any] = {}
        self._run([node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)], self._constants)

    def place_of(self, name: str) -> str:
        """Return a name with the module that the file imports it from."""
        head, dot, rest = name.partition(".")
        return f"{self._modules.get(head, head)}{dot}{rest}"

    def read(self, name: str, given: Mapping[str, Any] = MappingProxyType({})) -> Any:
        """Return what the function returns for these arguments; InputError for a function or argument not there."""
        if name == SCRIPT:
            return self._run(self._main[0].body, {})[1]
        if name not in self.functions:
            known = [each for each in self.functions if not each.startswith("_")]
            raise InputError(
                f"{self.source}: has no function {name[:60]!r}{did_you_mean(name, known)}; it has {listed(known[:40])}"
            )
        node = self.functions[name]
        taken = [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
        for argument in given:
            if argument not in taken:
                takes = f"; it takes {listed(taken[:8])}" if taken else ""
                raise InputError(
                    f"{self.source}: {name} takes no argument {argument[:60]!r}{did_you_mean(argument, taken)}; leave "
                    f"--arg {argument[:60]}=... out{takes}"
                )
        return self._called(node, (), given)

    def chosen(self, pattern: re.Pattern[str], starts: Collection[str]) -> str:
        """Return the one recipe of a file: by its name, by what it starts, or ``SCRIPT``.

        Raises InputError where there are several or none.
        """
        made = [name for name in self.functions if pattern.search(name) and not name.startswith("_")]
        calls = {
            name: {ast.unparse(each.func) for each in ast.walk(node) if isinstance(each, ast.Call)}
            for name, node in self.functions.items()
        }
        made = made or [name for name in calls if not calls[name].isdisjoint(starts)]
        if not made and self._main:
            return SCRIPT
        if len(made) != 1:
            known = made or [*self.functions][:20]
            has = f" (it has {listed(known)})" if known else ""
            raise InputError(
                f"{self.source}: has {'several recipes' if made else 'no recipe of pre-training'}; name one behind a "
                f"colon, as in {self.source}:{(known or ['NAME'])[0]}{has}"
            )
        return made[0]

    # --- functions and statements

    def _called(self, function: ast.FunctionDef, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise InputError(f"{self.source}: functions call each other more than {_MOST_DEPTH} deep")
        given = function.args
        positional = [each.arg for each in (*given.posonlyargs, *given.args)]
        pairs = [*zip(reversed(positional), reversed(given.defaults), strict=False)]
        pairs += [(each.arg, value) for each, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value]
        own = {*positional, *(each.arg for each in given.kwonlyargs)}
        scope = {name: self._value(default, {}) for name, default in pairs}
        scope |= dict(zip(positional, args, strict=False)) | {name: named[name] for name in named if name in own}
        if given.kwarg:
            scope[given.kwarg.arg] = {name: value for name, value in named.items() if name not in own}
        found = self._run(function.body, scope)[1]
        self._depth -= 1
        return found

    def _run(self, body: Sequence[ast.stmt], scope: dict[str, Any]) -> tuple[bool, Any]:
        """Return whether statements return, and what."""
        for node in body:
            self._count(1)
            inner: Sequence[ast.stmt] = ()
            match node:
                case ast.Return():
                    return True, self._value(node.value, scope) if node.value else None
                case ast.Assign(targets=targets, value=value):
                    made = self._value(value, scope)
                    for target in targets:
                        self._put(target, made, scope)
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    self._put(target, self._value(value, scope), scope)
                case ast.If():
                    met = truth(self._value(node.test, scope))
                    inner = node.body if met else node.orelse if met is False else ()
                    if met is None:
                        self._note(f"where {ast.unparse(node.test)}", node)
                case ast.With() | ast.Try():
                    inner = node.body
                case ast.For() | ast.While() | ast.AugAssign():
                    self._note(f"in {ast.unparse(node).partition(chr(10))[0]}", node)
                case ast.Expr(value=ast.Call() as call):
                    made = self._value(call, scope)
                    changed = isinstance(call.func, ast.Name) and isinstance(made, Built)
                    if changed and any(isinstance(each, Built) and each.fields for each in made.args):
                        self.undecided[f"in {ast.unparse(call)}"[:100]] = None
                case _:
                    pass
            done, value = self._run(inner, scope)
            if done:
                return True, value
        return False, None

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > _MOST_STEPS:
            raise InputError(f"{self.source}: takes more than {_MOST_STEPS:,} steps to read")

    def _note(self, what: str, node: ast.stmt) -> None:
        """Record an undecided statement with the settings that it changes and the calls that may change some."""
        names = []
        for each in ast.walk(node):
            call = each.value if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call) else None
            if (
                isinstance(each, ast.Attribute)
                and isinstance(each.ctx, ast.Store)
                and not self._idle(ast.unparse(each))
            ):
                names.append(each.attr)
            elif call and isinstance(call.func, ast.Name) and any(isinstance(arg, ast.Attribute) for arg in call.args):
                names.append(f"{call.func.id}()")
        changes = f" (it changes {listed([*dict.fromkeys(names)])[:200]})" if names else ""
        if names or any(isinstance(each, ast.Return) for each in ast.walk(node)):
            self.undecided[f"{what[:100]}{changes}"] = None

    def _put(self, target: ast.expr, value: Any, scope: dict[str, Any]) -> None:
        match target:
            case ast.Name(id=name):
                scope[name] = value
            case ast.Attribute(value=of, attr=name):
                owner = self._value(of, scope)
                if not isinstance(owner, Built) and isinstance(of, ast.Name | ast.Attribute):  # a section not made yet
                    said = (owner,) if isinstance(owner, str | Unread) else ()
                    owner = Built(of.id if isinstance(of, ast.Name) else of.attr, said)
                    self._put(of, owner, scope)
                if isinstance(owner, Built):
                    owner.fields[name] = value
            case ast.Subscript(value=of, slice=key):
                if isinstance(held := self._value(of, scope), dict):
                    held[str(self._value(key, scope))] = value
            case ast.Tuple(elts=parts):
                known = isinstance(value, list) and len(value) == len(parts)
                made = Unread(value.name if isinstance(value, Built) else str(getattr(value, "text", value))[:200])
                for place, part in enumerate(parts):
                    self._put(part, value[place] if known else made, scope)
            case _:
                pass

    # --- expressions

    def _value(self, node: ast.expr, scope: Mapping[str, Any]) -> Any:
        found = self._known_value(node, scope)
        return Unread(ast.unparse(node)[:200]) if found is NotImplemented else found

    def _known_value(self, node: ast.expr, scope: Mapping[str, Any]) -> Any:
        """Return the value of an expression; NotImplemented for one that is not read."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return scope.get(name, self._constants.get(name, NotImplemented))
            case ast.Attribute(value=of, attr=name):
                one = 1 if _DEGREE.fullmatch(name) else NotImplemented  # of what nothing splits
                return owner.fields.get(name, one) if isinstance(owner := self._value(of, scope), Built) else one
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return [self._value(part, scope) for part in parts]
            case ast.Dict(keys=keys, values=values):
                made: dict[str, Any] = {}
                for key, each in zip(keys, values, strict=True):
                    value = self._value(each, scope)
                    merged = value if isinstance(value, dict) else {}
                    made |= {str(self._value(key, scope)): value} if key else merged
                return made
            case ast.Subscript(value=of, slice=place):
                held, key = self._value(of, scope), self._value(place, scope)
                if isinstance(held, dict):
                    return held.get(str(key), NotImplemented)
                inside = isinstance(held, list) and isinstance(key, int) and -len(held) <= key < len(held)
                return held[key] if inside else NotImplemented
            case ast.ListComp(elt=elt, generators=[ast.comprehension(target=ast.Name(id=name), iter=items, ifs=[])]):
                if not isinstance(held := self._value(items, scope), list):
                    return NotImplemented
                self._count(len(held))
                return [self._value(elt, {**scope, name: each}) for each in held]
            case ast.IfExp(test=test, body=body, orelse=orelse):
                met = truth(self._value(test, scope))
                return NotImplemented if met is None else self._value(body if met else orelse, scope)
            case ast.BoolOp(op=sign, values=parts):
                for part in parts:
                    met = truth(value := self._value(part, scope))
                    if met is None or met is isinstance(sign, ast.Or):
                        return NotImplemented if met is None else value
                return value
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                met = truth(self._value(operand, scope))
                return NotImplemented if met is None else not met
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self._value(operand, scope)
                return -value if isinstance(value, int | float) else NotImplemented
            case ast.BinOp(left=left, op=sign, right=right) | ast.Compare(left=left, ops=[sign], comparators=[right]):
                return operated(sign, self._value(left, scope), self._value(right, scope))
            case ast.Call():
                return self._call(node, scope)
        return NotImplemented

    def _call(self, node: ast.Call, scope: Mapping[str, Any]) -> Any:
        args = [self._value(each, scope) for each in node.args if not isinstance(each, ast.Starred)]
        named: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self._value(keyword.value, scope)
            if keyword.arg or isinstance(value, dict):
                named |= {keyword.arg: value} if keyword.arg else value
            else:
                self.undecided[f"with **{ast.unparse(keyword.value)}"[:100]] = None
        name = ast.unparse(node.func)
        if name in self.functions:
            return self._called(self.functions[name], args, named)
        if name in self._known:
            return self._known[name](*args, **named)
        if name in ("replace", "dataclasses.replace") and args and isinstance(args[0], Built):
            return Built(args[0].name, args[0].args, {**args[0].fields, **named})
        if name == "isinstance" and args[1:] == [Unread("str")] and not isinstance(args[0], Unread):
            return isinstance(args[0], str)
        if name == "getattr" and len(args) == 3 and isinstance(args[0], Built):
            return args[0].fields.get(str(args[1]), args[2])
        if name in ("deepcopy", "copy.deepcopy", "list") and len(args) == 1:
            return deepcopy(args[0])
        if not isinstance(node.func, ast.Attribute):
            return named if name == "dict" and not args else Built(name, tuple(args), named)
        of, method = self._value(node.func.value, scope), node.func.attr
        if isinstance(of, list) and method == "append" and args:
            return of.append(args[0])
        return Built(method, tuple(args), named, of) if isinstance(of, Built) else Built(name, tuple(args), named)
