"""Values that the top of a Python file gives names to, each read when it is first asked for."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from simcluster.importers.python_expressions import MOST_DEPTH
from simcluster.importers.python_values import NOTHING

Assignment = ast.Assign | ast.AnnAssign


class Constants(Mapping[str, Any]):
    """Values by name; one that is asked for while it is read, or over too many files, is NOTHING.

    A package imports far more than a recipe takes of it, and its files import each other: what nobody asks for is
    therefore not read.
    """

    def __init__(self, tree: ast.Module, assign: Callable[[Assignment, dict[str, Any], int], None]) -> None:
        self._assign = assign
        self._found: dict[str, Any] = {}
        self._nodes = [node for node in tree.body if isinstance(node, Assignment) and node.value is not None]
        self._waiting: dict[str, list[Assignment]] = {}
        for node in self._nodes:
            for name in _named(node):
                self._waiting.setdefault(name, []).append(node)
        self._names = dict.fromkeys(self._waiting)
        self.reading: list[str] = []
        """Names that are being read, of all files that are read together."""

    def read_all(self) -> None:
        """Read all in the order in which they stand, in which each sees what those before it have made."""
        self._waiting.clear()
        for node in self._nodes:
            self._assign(node, self._found, 0)

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        if name in self._waiting and len(self.reading) < MOST_DEPTH:
            self.reading.append(name)
            for node in self._waiting.pop(name):
                self._assign(node, self._found, 0)
            self.reading.pop()
        return self._found.get(name, NOTHING)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _named(node: Assignment) -> Iterator[str]:
    """The names that an assignment gives a value, or whose value it changes."""
    targets: list[ast.expr] = list(node.targets) if isinstance(node, ast.Assign) else [node.target]
    while targets:
        target = targets.pop(0)
        if isinstance(target, ast.Tuple | ast.List):
            targets += target.elts
            continue
        while isinstance(target, ast.Attribute | ast.Subscript):
            target = target.value
        if isinstance(target, ast.Name):
            yield target.id
