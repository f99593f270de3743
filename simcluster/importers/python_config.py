"""Python functions that build a configuration, read as plain data: recipes and registries.  Nothing is imported or run.

Assignments, calls with keywords, functions of the same file and tests that can be decided have a meaning; all else
stays as it is written.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import did_you_mean, listed
from simcluster.importers.beside import Beside, nothing_beside
from simcluster.importers.python_arguments import ProgramArguments
from simcluster.importers.python_constants import Constants
from simcluster.importers.python_expressions import MOST_DEPTH
from simcluster.importers.python_modules import calls, files_of, imported_names, methods_of, required, taken
from simcluster.importers.python_statements import PythonStatements
from simcluster.importers.python_values import (
    NOTHING,
    Built,
    Unread,
    called_builtin,
    called_of,
)  # fmt: skip

_MOST_CHARACTERS = 500_000


class PythonConfigs(PythonStatements):
    """The functions of one file by name; ``read`` gives what one of them returns."""

    def __init__(
        self,
        text: str,
        source: str,
        *,
        closed: str = r"(?!)",
        known: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
        models: Callable[[str], bool] = bool,
        beside: Beside = nothing_beside,
        module: str = "",
        arguments: ProgramArguments | None = None,
        methods: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
        idle: Callable[[str], bool] = lambda attribute: False,
    ) -> None:
        """``closed`` is a pattern of functions that are not followed: a call of one stays what it is.  ``known`` are
        functions of other files by name, as they are here; ``models`` says whether a class is that of a known model.
        ``beside`` gives the text of files that the file, which is ``module``, imports from; ``arguments`` are those of
        the program."""
        if len(text) > _MOST_CHARACTERS:
            raise InputError(f"{source}: has more than {_MOST_CHARACTERS:,} characters, which no recipes have")
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
            line = f":{problem.lineno}" if isinstance(problem, SyntaxError) and problem.lineno else ""
            what = problem.msg if isinstance(problem, SyntaxError) else str(problem)[:100]
            raise InputError(f"{source}{line}: is not Python: {what}; mend that line, or take the whole file") from None
        super().__init__(source, idle)
        self._tree = tree
        made = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        self.functions = {node.name: node for node in made if not re.search(closed, node.name)}
        self.classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        self.methods = methods_of(self.classes.values())
        self.arguments, self._methods = arguments or ProgramArguments({}), methods
        self._known, self._models = known, models
        self._closed, self._beside = closed, beside
        self._imported, self._whole = imported_names(tree, module)
        self.asked: list[str] = []
        """Arguments that the function which is read takes, and nobody gives."""
        self._others: dict[str, PythonConfigs | None] = {}
        self._places: dict[str, tuple[PythonConfigs | None, str]] = {}
        self.constants = Constants(tree, self._assign)
        if not module:
            self.constants.read_all()

    def takes(self, name: str, argument: str) -> bool:
        """Whether the function of this name has that argument."""
        return name in self.functions and argument in taken(self.functions[name])

    def read(self, name: str, **given: Any) -> Any:
        """What the function returns where it is called with these arguments, and what the user gives of the others;
        InputError for one that is not there."""
        if node := self.functions.get(name, self.methods.get(name)):
            given = self.arguments.of_function(taken(node)) | given
        if name in self.methods and name not in self.functions:
            return self._called(self.methods[name], (Built("self"),), given, 0)
        if name not in self.functions:
            known = [each for each in (*self.functions, *self.methods) if not each.startswith("_")]
            raise InputError(
                f"{self.source}: has no function {name[:60]!r}{did_you_mean(name, known)}; it has {listed(known[:40])}"
            )
        self.asked = [each for each in required(self.functions[name]) if each not in given]
        return self._called(self.functions[name], (), given, 0)

    def is_whole(self, name: str) -> bool:
        """Whether a function can be called without arguments."""
        return not required(self.functions[name])

    def calling(self, names: Collection[str]) -> list[str]:
        """The functions and methods that call one of these functions."""
        return [name for name, node in (self.functions | self.methods).items() if calls(node, names)]

    def is_program(self) -> bool:
        """Whether the file says what it does where it is started."""
        return any(isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in self._tree.body)

    def run_as_script(self) -> None:
        """Read what the file does where it is started, for what the functions that are known make of it."""
        scope = {"__name__": "__main__"}
        plain = ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign
        self._body([node for node in self._tree.body if not isinstance(node, plain)], scope, 0)

    def module_of(self, name: str) -> str:
        """The module, with dots, of a function that is called by this name; empty where no import says it."""
        head, *parts = name.split(".")
        module, original = self._imported.get(head, ("", ""))
        return ".".join([module, original, *parts[:-1]] if module and parts else [module])

    def imported_as(self, endings: tuple[str, ...]) -> list[str]:
        """The names with one of these endings that the file imports."""
        return [name for name in self._imported if name.endswith(endings)]

    def is_beside(self, name: str) -> bool:
        """Whether the file that a name is imported from is there."""
        return self._elsewhere(name)[0] is not None

    def missing_module(self, name: str, over: int = 0) -> str:
        """The module that a function comes of at last, over files that hand it on and are read, and that is not there;
        empty where no import of any file says it."""
        files, read = [self], [self]
        while files:
            others = [each for each in files.pop()._others.values() if each is not None and each not in read]
            files, read = [*files, *others], [*read, *others]
        file = next((each for each in read if each.module_of(name)), self)
        module, original = file._imported.get(name, (file.module_of(name), name))
        handed = file._others.get(module)
        further = handed.missing_module(original, over + 1) if handed and over < MOST_DEPTH else ""
        return further or module

    def _called(self, function: ast.FunctionDef, args: Sequence[Any], named: Mapping[str, Any], depth: int) -> Any:
        if depth > MOST_DEPTH:
            raise InputError(f"{self.source}: functions call each other more than {MOST_DEPTH} deep")
        positional = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        scope: dict[str, Any] = {}
        for name, default in zip(reversed(positional), reversed(function.args.defaults), strict=False):
            scope[name] = self._value(default, {}, depth)
        for each, given in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
            if given is not None:
                scope[each.arg] = self._value(given, {}, depth)
        scope |= dict(zip(positional, args, strict=False))
        known = {*positional, *(each.arg for each in function.args.kwonlyargs)}
        scope |= {name: value for name, value in named.items() if name in known}
        if function.args.kwarg:
            scope[function.args.kwarg.arg] = {name: value for name, value in named.items() if name not in known}
        return self._body(function.body, scope, depth)[1]

    def _name(self, node: ast.Name, scope: Mapping[str, Any], depth: int) -> Any:
        if node.id in scope or node.id in self.constants:
            return scope[node.id] if node.id in scope else self.constants[node.id]
        other, name = self._elsewhere(node.id)
        return other.constants.get(name, NOTHING) if other else NOTHING

    def _is_made(self, name: str) -> bool:
        return any(name in named for named in (self.functions, self.classes, self._imported, self._known))

    def _variable(self, name: str) -> Any:
        return self.arguments.variable(name)

    def _elsewhere(self, name: str) -> tuple[PythonConfigs | None, str]:
        """The file that a name is imported from, over those that only hand it on, and its name there; None."""
        if name not in self._places:
            self._places[name] = None, name  # also while it is looked for, for files that hand it on in a circle
            self._places[name] = self._place(name)
        return self._places[name]

    def _place(self, name: str) -> tuple[PythonConfigs | None, str]:
        module, original = self._imported.get(name, ("", name))
        if re.search(self._closed, original):
            return None, name
        for each in [module] if module else self._whole:
            other = self._file(each)
            found = (other, original) if other is None or other.has(original) else other._elsewhere(original)
            if found[0] is not None or module:
                return found
        return None, name

    def has(self, name: str) -> bool:
        """Whether the file itself makes what goes by a name."""
        return any(name in named for named in (self.functions, self.constants, self.classes))

    def _file(self, module: str) -> PythonConfigs | None:
        """The file of a module, where it is there; None also while it is read, for files that import each other."""
        if module not in self._others:
            self._others[module] = None
            for path in files_of(module):
                if text := self._beside(path):
                    inside = f"{module}.__init__" if path.endswith("__init__.py") else module
                    read = PythonConfigs(
                        text, path, closed=self._closed, known=self._known, models=self._models,
                        beside=self._beside, module=inside, arguments=self.arguments, methods=self._methods,
                        idle=self._idle,
                    )  # fmt: skip
                    read.undecided, read.constants.reading = self.undecided, self.constants.reading
                    read._others = self._others  # of files that are read together, each once
                    self._others[module] = read
                    break
        return self._others[module]

    def _of_module(self, name: str) -> tuple[PythonConfigs | None, str]:
        """The file that a function is of that is called as MODULE.NAME, and its name there; None."""
        module, _, function = name.rpartition(".")
        head, _, rest = module.partition(".")
        if head not in self._imported or not function:
            return None, name
        path = ".".join([*filter(None, self._imported[head]), *([rest] if rest else [])])
        self._imported[name] = (path, function)
        return self._elsewhere(name)

    def _call(self, node: ast.Call, scope: Mapping[str, Any], depth: int) -> Any:
        args = [self._value(each, scope, depth) for each in node.args if not isinstance(each, ast.Starred)]
        named: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self._value(keyword.value, scope, depth)
            if keyword.arg:
                named[keyword.arg] = value
            elif isinstance(value, dict):
                named |= value
            else:
                self.undecided.append(f"with **{ast.unparse(keyword.value)}"[:100])
        name = ast.unparse(node.func)
        if isinstance(held := scope.get(name), Unread) and held.text.replace(".", "a").isidentifier():
            name = held.text  # a class or function in a variable
        if isinstance(node.func, ast.Call | ast.Subscript):  # partial(f, a=1)(), of a dictionary too
            held = self._value(node.func, scope, depth)
            if isinstance(held, Built) and held.name.endswith("partial") and held.args:
                name, args, named = getattr(held.args[0], "text", name), [*held.args[1:], *args], held.fields | named
        if name in self.functions:
            return self._called(self.functions[name], args, named, depth)
        if name.startswith("self.") and (own := self.methods.get(name[len("self.") :])):
            return self._called(own, [scope.get("self"), *args], named, depth)
        if name in self._known:
            return self._filled(self._known[name](*args, **named), depth)
        other, original = self._of_module(name) if "." in name else self._elsewhere(name)
        if other and original in other.functions:
            return other._called(other.functions[original], args, named, depth)
        for found in (called_builtin(name, args, named), self.arguments.of_environment(name, args)):
            if found is not NOTHING:
                return found
        method = name.rpartition(".")[2]
        fills = method == "update" and bool(args) and isinstance(args[0], dict)
        found_in = self._changed if fills else self._value
        of = found_in(node.func.value, scope, depth) if isinstance(node.func, ast.Attribute) else None
        if isinstance(of, Built) and of.name.endswith("ArgumentParser"):
            return self.arguments.of_parser(of, method, args, named)
        if isinstance(of, Built) and method in self._methods:
            return self._methods[method](of, *args, **named)
        if isinstance(of, Built):
            return Built(method, tuple(args), named, of)
        if isinstance(of, dict | list | str):
            return called_of(of, method, args)
        return self._filled(Built(name, tuple(args), named), depth)

    def _filled(self, made: Any, depth: int) -> Any:
        """A call, with what the class says that is called, where it is derived from that of a model."""
        if not isinstance(made, Built) or depth > MOST_DEPTH or self._models(made.name):
            return made
        name, said = self._class(made.name, depth)
        if name == made.name or not (self._models(name) or "num_layers" in said):
            return made
        return Built(name, made.args, {**said, **made.fields}, made.of)

    def _class(self, name: str, depth: int) -> tuple[str, dict[str, Any]]:
        """The class that one comes of, at last or as one that is known, and the fields that are said on the way."""
        owner: PythonConfigs | None = self
        if name not in self.classes:
            owner, name = self._elsewhere(name)
        node = owner.classes.get(name) if owner else None
        if node is None or owner is None or depth > MOST_DEPTH or self._models(name):
            return name, {}
        base = ast.unparse(node.bases[0]).rpartition(".")[2] if node.bases else ""
        root, said = owner._class(base, depth + 1) if base else (name, {})
        own: dict[str, Any] = {}
        for each in node.body:
            if isinstance(each, ast.Assign | ast.AnnAssign) and each.value is not None:
                owner._assign(each, own, depth)
        return root, said | own
