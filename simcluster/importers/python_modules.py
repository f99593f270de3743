"""What a file in Python has: names that it imports, methods of its classes, and which functions call which."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator


def imported_names(tree: ast.Module, module: str) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """By each name that ``from MODULE import NAME`` or ``import MODULE as NAME`` gives, at the top of a file or in its
    functions, the module and the name in it; and modules of which all is imported.

    ``module`` is that of the file itself, with dots (``""``: not known), from which relative ones are counted.
    """
    found: dict[str, tuple[str, str]] = {}
    whole: list[str] = []
    inner = [each for node in tree.body if not isinstance(node, ast.ImportFrom | ast.Import) for each in ast.walk(node)]
    for node in (*inner, *tree.body):  # those at the top have the last word
        if isinstance(node, ast.Import):
            named = [(each.asname, each.name.rpartition(".")) for each in node.names if each.asname]
            found |= {name: (module, part) for name, (module, _, part) in named if name and module}
        if not isinstance(node, ast.ImportFrom):
            continue
        parts = module.split(".")[: -node.level] if node.level and module else []
        if node.level and not parts:
            name = f"{'.' * node.level}{node.module or ''}"
        else:
            name = ".".join([*parts, *([node.module] if node.module else [])])
        found |= {each.asname or each.name: (name, each.name) for each in node.names if each.name != "*"}
        whole += [name for each in node.names if each.name == "*"]
    return found, whole


def files_of(module: str) -> Iterator[str]:
    """Paths at which a module may lie."""
    level = len(module) - len(module.lstrip("."))
    path = "../" * max(level - 1, 0) + module.lstrip(".").replace(".", "/")
    for folder in ("",) if level else ("", "src/"):
        yield from (f"{folder}{path}.py", f"{folder}{path}/__init__.py")


def methods_of(classes: Iterable[ast.ClassDef]) -> dict[str, ast.FunctionDef]:
    """The methods of classes by name; of those that several have, by CLASS.NAME, too."""
    found: dict[str, ast.FunctionDef] = {}
    for made in classes:
        for node in made.body:
            if isinstance(node, ast.FunctionDef):
                found[node.name if node.name not in found else f"{made.name}.{node.name}"] = node
    return found


def calls(node: ast.FunctionDef, names: Collection[str]) -> bool:
    """Whether a function calls one of those that go by these names."""
    return any(isinstance(each, ast.Call) and ast.unparse(each.func) in names for each in ast.walk(node))


def taken(node: ast.FunctionDef) -> list[str]:
    """The arguments of a function that a call can name."""
    return [each.arg for each in (*node.args.args, *node.args.kwonlyargs) if each.arg != "self"]


def required(node: ast.FunctionDef) -> list[str]:
    """The arguments of a function that have no default."""
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    named = [each for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None]
    return [each.arg for each in (*positional[: len(positional) - len(given.defaults)], *named)]
