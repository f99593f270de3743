"""What is known at a place of a shell script: variables, files that it writes, commands that start something."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simcluster.base.errors import InputError
from simcluster.importers.beside import Beside, nothing_beside

if TYPE_CHECKING:
    from tree_sitter import Node

Value = str | list[str]
"""Of a variable: a text, or the elements of an array.  What only a shell knows stands in it as ``$NAME``."""
REFERENCE = re.compile(r"\$\{?(\w+)\}?")
PAIR = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
"""What one word assigns, as ``env`` and ``export`` take it."""
UNKNOWN = re.compile(r"\$\(|\$\{|\$\w|`")
_MOST_STEPS = 20_000
_LONGEST = 200_000
_OF_THE_MACHINE = frozenset(
    ("PWD", "OLDPWD", "HOME", "USER", "HOSTNAME", "RANDOM", "PATH", "PYTHONPATH", "0", "PIPESTATUS", "BASH_VERSION")
)  # fmt: skip


def _read_nothing(node: Node, state: State) -> None:
    """Before a script is read."""


@dataclass
class State:
    """One script as it is read.

    ``fixed`` are values that the user gives: what the script assigns to those names is passed over.  ``beside`` gives
    the text of another file by its name, or None.  ``leaned`` counts decisions that rest on something assumed.
    ``run`` reads one statement, for words and tests with statements in them.
    """

    source: str
    fixed: Mapping[str, str] = field(default_factory=dict)
    beside: Beside = nothing_beside
    gpus_per_node: int | None = None
    variables: dict[str, Value] = field(default_factory=dict)
    positional: list[str] = field(default_factory=list)
    functions: dict[str, Node] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    commands: list[tuple[list[str], list[str]]] = field(default_factory=list)
    """Words of each command that starts a program, and the words before the shell that it stands in (of srun, say)."""
    around: list[str] = field(default_factory=list)
    missing: dict[str, None] = field(default_factory=dict)
    """Files that it would read on in, and that are not there."""
    unset: dict[str, None] = field(default_factory=dict)
    """Variables that a test rests on and that nothing sets."""
    required: dict[str, None] = field(default_factory=dict)
    """Variables without which the script ends (``${NAME:?}``) and that nothing sets."""
    defaults: dict[str, str] = field(default_factory=dict)
    """Numbers that variables have by default (``${NNODES:-1}``), as nobody sets them."""
    assumed: dict[str, None] = field(default_factory=dict)
    unknown: dict[str, None] = field(default_factory=dict)
    stopped: str = ""
    leaving: str = ""
    """``return``, ``break`` or ``continue`` until what it leaves has ended."""
    prints: list[str | None] | None = None
    """What the statements being read print, where that is asked; None in it is what is not known."""
    run: Callable[[Node, State], None] = _read_nothing
    leaned: int = 0
    depth: int = 0
    loops: int = 0
    calls: int = 0
    """How deep loops and functions of the script are in each other."""
    returned: str | None = None
    """What the function that was called last returns, where it says so."""
    hidden: list[dict[str, Value | None]] = field(default_factory=list)
    """Of each function being read the values that its own variables hide."""
    steps: int = 0

    def __post_init__(self) -> None:
        numbers = sorted(int(name) for name in self.fixed if name.isdecimal() and len(name) < 4)
        self.positional = [self.fixed.get(str(number), f"${number}") for number in range(1, (numbers or [0])[-1] + 1)]

    def spend(self) -> None:
        """InputError for a script that does not come to an end."""
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise InputError(f"{self.source}: takes more than {_MOST_STEPS:,} steps to read; give the command alone")

    def get(self, name: str) -> Value | None:
        """The value of a variable; None where the script never sets it."""
        if name.isdecimal() and (number := int(name[-6:])):  # those of a function, or what a shift has left
            return self.positional[number - 1] if number <= len(self.positional) else None
        return self.fixed[name] if name in self.fixed else self.variables.get(name)

    def put(self, name: str, value: Value) -> None:
        """Assigns; InputError for what grows beyond reason."""
        if sum(map(len, value)) > _LONGEST:
            raise InputError(f"{self.source}: {name} grows beyond {_LONGEST:,} characters; give the command alone")
        self.variables[name] = value

    def hide(self, name: str) -> None:
        """Makes a variable the function's own."""
        if self.hidden and name not in self.fixed:
            self.hidden[-1].setdefault(name, self.variables.get(name))

    def show(self, hidden: Mapping[str, Value | None]) -> None:
        """Gives variables back the values that they had before a function."""
        for name, value in hidden.items():
            if value is None:
                self.variables.pop(name, None)
            else:
                self.variables[name] = value

    def keyed(self, name: str) -> dict[str, str]:
        """What an array has by keys that are no places in a row (of ``declare -A``)."""
        begin = f"{name}["
        return {
            each[len(begin) : -1]: joined(value) for each, value in self.variables.items() if each.startswith(begin)
        }

    def key(self, subscript: str) -> str:
        """What stands between the brackets of an array's element, filled in and without its quotes."""
        return REFERENCE.sub(lambda each: joined(self.get(each[1]) or ""), subscript).strip("\"'")

    def say(self, text: str | None) -> None:
        """Takes down what a statement prints, where that is asked."""
        if self.prints is not None:
            self.prints.append(text)

    def taken_as_unset(self, text: str) -> str | None:
        """The text with what the script never sets left out, which is noted; None where a command's output is in it."""
        if "$(" in text or "`" in text:
            self.leaned += 1
            return None
        for name in REFERENCE.findall(text):
            self.leaned += 1
            if name not in _OF_THE_MACHINE:
                self.unset[name] = None
        return REFERENCE.sub("", text)

    def assumed_unset(self) -> tuple[str, ...]:
        """Return a sentence on the variables that are taken as unset, if there are any.

        Raises InputError where the script requires one of them and a test rests on it.
        """
        called = {name: f"argument {name}" if name.isdecimal() else name for name in (*self.unset, *self.required)}
        needed = [name for name in self.required if name in self.unset]
        if needed:
            names, given = ", ".join(called[name] for name in needed), " ".join(f"--arg {name}=..." for name in needed)
            it = "it" if len(needed) == 1 else "them"
            raise InputError(
                f"{self.source}: requires {names}, which nothing sets and a test of the script rests on; set {it} with "
                f"{given}"
            )
        if not called:
            return ()
        names = ", ".join(called.values())
        return (f"not set in the script, and taken as unset: {names} (--arg NAME=VALUE sets one)",)

    def text_named(self, name: str, *, wanted: bool = True) -> str | None:
        """A file that the script has written, or one beside it or in a folder around it; None where neither is there.

        Of its path what follows the last part that only a shell knows.  One that is ``wanted`` is told as missing.
        """
        if name in self.files:
            return self.files[name]
        if name.startswith("<("):
            return None  # what a command prints
        parts = name.split("/")
        known = next((n for n in range(len(parts), 0, -1) if UNKNOWN.search(parts[n - 1])), 0)
        path = "/".join(part for part in parts[known:] if part not in ("", ".", ".."))
        text = self.beside(path) if path else None
        if text is None and path and wanted:
            self.missing[path] = None
        return text


def is_unset(value: Value | None) -> bool:
    """Whether a shell without that variable would find nothing there."""
    return value is None or not value or (isinstance(value, str) and bool(re.fullmatch(r"\$\{?\w+\}?", value)))


def joined(value: Value) -> str:
    return value if isinstance(value, str) else " ".join(value)
