"""Reader of training recipes in Python, which interprets the source code and never imports or runs the recipes.

Read are literals, arithmetic, keyword arguments, dotted assignments, functions of the same file with their defaults,
and tests on known values. Any other expression stays as written (``UnreadExpression``), and so does the content of
other files: the caller asks for the configuration that the framework writes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from types import MappingProxyType
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import did_you_mean, join_or
from simcluster.importers.python_values import (
    RecordedCall,
    UnreadExpression,
    apply_operator,
    parse_argument_values,
    require_truth,
    truth_if_known,
)

NO_ARGUMENTS: Mapping[str, str] = MappingProxyType({})
SCRIPT_NAME = "the script"
"""Function name that represents a file's ``__main__`` block."""
_DEGREE = re.compile(r"((tensor|pipeline|expert)_model|context|expert_tensor)_parallel_size")
_MAX_CHARACTERS, _MAX_STEPS, _MAX_DEPTH = 500_000, 50_000, 30


class RecipeFile:
    """A recipe file in Python, whose functions are evaluated from their source instead of being run."""

    def __init__(
        self, text: str, source: str, *, external: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
        no_effect: Callable[[str], bool] = lambda attribute: False,
    ) -> None:  # fmt: skip
        """Parse the file; ``external``: functions of other files, ``no_effect``: detector of ineffective attributes."""
        if len(text) > _MAX_CHARACTERS:
            raise InputError(f"{source}: longer than {_MAX_CHARACTERS:,} characters, the limit; check the path")
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
            line = f":{problem.lineno}" if isinstance(problem, SyntaxError) and problem.lineno else ""
            what = problem.msg if isinstance(problem, SyntaxError) else str(problem)[:100]
            raise InputError(f"{source}{line}: is not Python: {what}; fix that line, or give the whole file") from None
        self.source, self._external_functions, self._has_no_effect = source, external, no_effect
        self.functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self._modules = {
            each.asname or each.name: f"{node.module or '.'}.{each.name}"
            for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for each in node.names
        }  # fmt: skip
        tests = [node for node in tree.body if isinstance(node, ast.If)]
        self._main_blocks = [node for node in tests if "__main__" in ast.unparse(node.test)]
        self._depth = self._steps = 0
        self.undecided: dict[str, None] = {}
        self._constants: dict[str, Any] = {}
        assignments = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
        self._interpret_statements(assignments, self._constants)

    def qualified_name(self, name: str) -> str:
        """Prefix a name with the module that the recipe file imports it from."""
        head, dot, rest = name.partition(".")
        return f"{self._modules.get(head, head)}{dot}{rest}"

    def read_function(self, name: str, given: Mapping[str, Any] = MappingProxyType({})) -> Any:
        """Evaluate a recipe function for these arguments, without running it; return the result."""
        if name == SCRIPT_NAME:
            return self._interpret_statements(self._main_blocks[0].body, {})[1]
        if name not in self.functions:
            known = [each for each in self.functions if not each.startswith("_")]
            raise InputError(
                f"{self.source}: has no function {name[:60]!r}{did_you_mean(name, known)}; it has {join_or(known[:40])}"
            )
        node = self.functions[name]
        taken = [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
        if other := next((argument for argument in given if argument not in taken), ""):
            takes = f"; it takes {join_or(taken[:8])}" if taken else ""
            raise InputError(
                f"{self.source}: {name} takes no argument {other[:60]!r}{did_you_mean(other, taken)}; remove --arg "
                f"{other[:60]}=...{takes}"
            )
        return self._call_function(node, (), given)

    def find_recipe(
        self, name: str, given: Mapping[str, str], pattern: re.Pattern[str], starts: Collection[str], started: list[Any]
    ) -> tuple[str, Any]:
        """Find the requested (or only) recipe; return its name, and the configuration that it returns or trains.

        A recipe starts a training by calling one of ``starts``. Without a name it is the function that the pattern
        finds, one that starts a training, or what the file does when it is run. Raises InputError if there are several
        or none.
        """
        made = [name for name in self.functions if pattern.search(name) and not name.startswith("_")]
        made = made or [
            name for name, node in self.functions.items()
            if any(isinstance(each, ast.Call) and ast.unparse(each.func) in starts for each in ast.walk(node))
        ] or [SCRIPT_NAME] * bool(self._main_blocks)  # fmt: skip
        if not name and len(made) != 1:
            known = made or [*self.functions][:20]
            has = f" (it has {join_or(known)})" if known else ""
            raise InputError(
                f"{self.source}: has {'several recipes' if made else 'no pre-training recipe'}; name one after a "
                f"colon, as in {self.source}:{(known or ['NAME'])[0]}{has}"
            )
        found = self.read_function(name or made[0], parse_argument_values(given))
        return name or made[0], found if isinstance(found, RecordedCall) or not started else started[0]

    # --- functions and statements

    def _call_function(self, function: ast.FunctionDef, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise InputError(
                f"{self.source}: functions call each other over {_MAX_DEPTH} levels deep; simplify the recipe"
            )
        given = function.args
        positional = [each.arg for each in (*given.posonlyargs, *given.args)]
        own = [*positional, *(each.arg for each in given.kwonlyargs)]
        defaults = [*[None] * (len(positional) - len(given.defaults)), *given.defaults, *given.kw_defaults]
        scope = {name: self._evaluate(node, {}) for name, node in zip(own, defaults, strict=True) if node}
        scope |= dict(zip(positional, args, strict=False)) | {name: named[name] for name in own if name in named}
        if given.kwarg:
            scope[given.kwarg.arg] = {name: value for name, value in named.items() if name not in own}
        found = self._interpret_statements(function.body, scope)[1]
        self._depth -= 1
        return found

    def _interpret_statements(self, body: Sequence[ast.stmt], scope: dict[str, Any]) -> tuple[bool, Any]:
        """Interpret Python statements; return whether they reach a ``return``, and the value returned."""
        for node in body:
            self._count_steps(1)
            inner: Sequence[ast.stmt] = ()
            match node:
                case ast.Return():
                    return True, self._evaluate(node.value, scope) if node.value else None
                case ast.Assign(value=ast.expr() as value) | ast.AnnAssign(value=ast.expr() as value):
                    made = self._evaluate(value, scope)
                    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                        self._assign_target(target, made, scope)
                case ast.If():
                    met = truth_if_known(self._evaluate(node.test, scope))
                    inner = node.body if met else node.orelse if met is False else ()
                    if met is None:
                        self._record_unknown_effect(f"where {ast.unparse(node.test)}", node)
                case ast.With() | ast.Try():
                    inner = node.body
                case ast.For() | ast.While() | ast.AugAssign():
                    self._record_unknown_effect(f"in {ast.unparse(node).partition(chr(10))[0]}", node)
                case ast.Expr(value=ast.Call() as call):
                    made = self._evaluate(call, scope)
                    changed = isinstance(call.func, ast.Name) and isinstance(made, RecordedCall)
                    if changed and any(isinstance(each, RecordedCall) and each.fields for each in made.args):
                        self.undecided[f"in {ast.unparse(call)}"[:100]] = None
                case _:
                    pass
            done, value = self._interpret_statements(inner, scope)
            if done:
                return True, value
        return False, None

    def _count_steps(self, steps: int) -> None:
        self._steps += steps
        if self._steps > _MAX_STEPS:
            raise InputError(f"{self.source}: takes more than {_MAX_STEPS:,} steps to read; simplify the recipe")

    def _record_unknown_effect(self, what: str, node: ast.stmt) -> None:
        """Record a statement that cannot be interpreted, and the settings that the statement may change."""
        names: dict[str, None] = {}
        for each in ast.walk(node):
            match each:
                case ast.Attribute(attr=name, ctx=ast.Store()) if not self._has_no_effect(ast.unparse(each)):
                    names[name] = None
                case ast.Expr(value=ast.Call(func=ast.Name(id=name), args=args)):
                    names |= {f"{name}()": None} if any(isinstance(arg, ast.Attribute) for arg in args) else {}
        changes = f" (it changes {join_or([*names])[:200]})" if names else ""
        if names or any(isinstance(each, ast.Return) for each in ast.walk(node)):
            self.undecided[f"{what[:100]}{changes}"] = None

    def _assign_target(self, target: ast.expr, value: Any, scope: dict[str, Any]) -> None:
        match target:
            case ast.Name(id=name):
                scope[name] = value
            case ast.Attribute(value=of, attr=name):
                owner = self._evaluate(of, scope)
                if not isinstance(owner, RecordedCall) and isinstance(of, ast.Name | ast.Attribute):  # a new section
                    said = (owner,) if isinstance(owner, str | UnreadExpression) else ()
                    owner = RecordedCall(of.id if isinstance(of, ast.Name) else of.attr, said)
                    self._assign_target(of, owner, scope)
                if isinstance(owner, RecordedCall):
                    owner.fields[name] = value
            case ast.Subscript(value=of, slice=key):
                if isinstance(held := self._evaluate(of, scope), dict):
                    held[str(self._evaluate(key, scope))] = value
            case ast.Tuple(elts=parts):
                known = isinstance(value, list) and len(value) == len(parts)
                text = value.name if isinstance(value, RecordedCall) else str(getattr(value, "text", value))[:200]
                made = UnreadExpression(text)
                for place, part in enumerate(parts):
                    self._assign_target(part, value[place] if known else made, scope)

    # --- expressions

    def _evaluate(self, node: ast.expr, scope: Mapping[str, Any]) -> Any:
        try:
            return self._evaluate_or_raise(node, scope)
        except InputError:
            raise
        except (LookupError, TypeError, ValueError, ArithmeticError):
            return UnreadExpression(ast.unparse(node)[:200])

    def _evaluate_or_raise(self, node: ast.expr, scope: Mapping[str, Any]) -> Any:
        """Return the value of an expression; raise a Python error if the value cannot be determined."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return scope[name] if name in scope else self._constants[name]
            case ast.Attribute(value=of, attr=name):
                owner = self._evaluate(of, scope)
                fields = owner.fields if isinstance(owner, RecordedCall) else {}
                return 1 if name not in fields and _DEGREE.fullmatch(name) else fields[name]  # default degree
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return [self._evaluate(part, scope) for part in parts]
            case ast.Dict(keys=keys, values=values):
                made: dict[str, Any] = {}
                for key, each in zip(keys, values, strict=True):
                    value = self._evaluate(each, scope)
                    spread = value if isinstance(value, dict) else {}
                    made |= {str(self._evaluate(key, scope)): value} if key else spread
                return made
            case ast.Subscript(value=of, slice=place):
                held, key = self._evaluate(of, scope), self._evaluate(place, scope)
                return held[str(key)] if isinstance(held, dict) else [*held][key]
            case ast.ListComp(elt=elt, generators=[ast.comprehension(target=ast.Name(id=name), iter=items, ifs=[])]):
                held = [*self._evaluate(items, scope)]
                self._count_steps(len(held))
                return [self._evaluate(elt, {**scope, name: each}) for each in held]
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._evaluate(body if require_truth(self._evaluate(test, scope)) else orelse, scope)
            case ast.BoolOp(op=sign, values=[*parts, last]):
                for part in parts:
                    if require_truth(value := self._evaluate(part, scope)) is isinstance(sign, ast.Or):
                        return value
                return self._evaluate(last, scope)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not require_truth(self._evaluate(operand, scope))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._evaluate(operand, scope)
            case ast.BinOp(left=left, op=sign, right=right) | ast.Compare(left=left, ops=[sign], comparators=[right]):
                return apply_operator(sign, self._evaluate(left, scope), self._evaluate(right, scope))
            case ast.Call():
                return self._evaluate_call(node, scope)
        raise ValueError

    def _evaluate_call(self, node: ast.Call, scope: Mapping[str, Any]) -> Any:
        args = [self._evaluate(each, scope) for each in node.args if not isinstance(each, ast.Starred)]
        named: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self._evaluate(keyword.value, scope)
            if keyword.arg or isinstance(value, dict):
                named |= {keyword.arg: value} if keyword.arg else value
            else:
                self.undecided[f"with **{ast.unparse(keyword.value)}"[:100]] = None
        name = ast.unparse(node.func)
        if name in self.functions:
            return self._call_function(self.functions[name], args, named)
        if name in self._external_functions:
            return self._external_functions[name](*args, **named)
        match name.rpartition(".")[2], args:
            case "replace", [RecordedCall() as made, *_]:
                return RecordedCall(made.name, made.args, {**made.fields, **named})
            case "isinstance", [value, UnreadExpression("str")] if not isinstance(value, UnreadExpression):
                return isinstance(value, str)
            case "getattr", [RecordedCall() as made, str(field), default]:
                return made.fields.get(field, default)
            case "deepcopy" | "list", [value]:
                return deepcopy(value)
            case "dict", [] if name == "dict":
                return named
        of = self._evaluate(node.func.value, scope) if isinstance(node.func, ast.Attribute) else None
        if isinstance(of, list) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
            return of.append(args[0])
        method = node.func.attr if isinstance(node.func, ast.Attribute) and isinstance(of, RecordedCall) else name
        return RecordedCall(method, tuple(args), named, of if isinstance(of, RecordedCall) else None)
