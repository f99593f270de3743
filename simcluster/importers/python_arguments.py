"""What a program in Python takes from its command line and its environment: as it is given, by default, or neither."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import did_you_mean, listed
from simcluster.importers.python_values import NOTHING, Built, Unread

_OF_THE_ENVIRONMENT = ("os.getenv", "os.environ.get", "os.environ.setdefault", "getenv", "environ.get")
_MOST_TOLD = 8
NONE_GIVEN: Mapping[str, str] = MappingProxyType({})


class ProgramArguments:
    """The arguments of one program: ``given`` by the user by name, and ``missing`` those that it needs beside them."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lstrip("-").replace("-", "_"): value for name, value in given.items()}
        self._used: set[str] = set()
        self._set: dict[str, Any] = {}
        self._taken: dict[str, None] = {}
        self.missing: dict[str, None] = {}

    def require_used(self, source: str) -> None:
        """InputError for what is given and the program does not take."""
        for name in self._given:
            if name not in self._used:
                known = f"; it takes {listed([*self._taken][:_MOST_TOLD])}" if self._taken else ""
                near = did_you_mean(name, self._taken)
                raise InputError(
                    f"{source}: takes no argument {name[:60]!r}{near}; leave --arg {name[:60]}=... out{known}"
                )

    def of_function(self, names: Sequence[str]) -> dict[str, Any]:
        """What is given of the arguments of a function that is read by its name, as Python would write the words."""
        self._taken |= dict.fromkeys(names)
        found = {name: _written(self._given[name]) for name in names if name in self._given}
        self._used |= found.keys()
        return found

    def of_parser(self, parser: Built, method: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """What a method of ``argparse.ArgumentParser`` does and returns."""
        if method == "add_argument" and args and isinstance(args[-1], str):
            long = next((str(each) for each in args if str(each).startswith("--")), str(args[-1]))
            name = str(named.get("dest", long.lstrip("-").replace("-", "_")))
            self._taken[name] = None
            parser.fields[name] = self._value(name, str(args[0]).startswith("-"), named)
        elif method == "parse_args":
            return Built("Namespace", (), dict(parser.fields))
        elif method == "parse_known_args":
            return [Built("Namespace", (), dict(parser.fields)), []]
        elif method == "set_defaults":
            parser.fields |= {name: value for name, value in named.items() if name not in self._given}
        elif method in ("add_argument_group", "add_mutually_exclusive_group"):
            return parser
        return None

    def _value(self, name: str, option: bool, named: Mapping[str, Any]) -> Any:
        switch = named.get("action") in ("store_true", "store_false")
        if name in self._given:
            self._used.add(name)
            return _typed(self._given[name], "bool" if switch else getattr(named.get("type"), "text", ""))
        if switch:
            return named.get("action") == "store_false"
        asked = named.get("required") is True if option else named.get("nargs") not in ("?", "*")
        if asked and named.get("default") is None:
            self.missing[name] = None
            return Unread(f"args.{name}")
        return named.get("default")

    def of_environment(self, name: str, args: Sequence[Any]) -> Any:
        """What a function returns that reads a variable of the environment; NOTHING for any other."""
        if name not in _OF_THE_ENVIRONMENT or not args or not isinstance(args[0], str):
            return NOTHING
        if name.endswith("setdefault") and len(args) > 1:
            self._set.setdefault(args[0], args[1])
        known = args[0] in self._given or args[0] in self._set
        return args[1] if len(args) > 1 and not known else self.variable(args[0])

    def variable(self, name: str) -> Any:
        """A variable of the environment that a program needs."""
        if name in self._given:
            self._used.add(name)
        elif name not in self._set:
            self.missing[name] = None
        return self._given.get(name, self._set.get(name, NOTHING))


def _written(text: str) -> Any:
    """A word as a number, True, False or None, where it is one of them, and otherwise as it is."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text
    return value if value is None or isinstance(value, int | float) else text


def _typed(text: str, kind: str) -> Any:
    """A word of the command line, of the type that its argument has."""
    if kind == "bool" or text.lower() in ("true", "false"):
        return text.lower() in ("", "true", "1", "yes")
    for make in {"int": (int,), "float": (float,)}.get(kind, ()):
        try:
            return make(text)
        except ValueError:
            raise InputError(f"--arg {text[:40]!r}: the program takes {kind} there; give a number") from None
    return text


def not_given(missing: Sequence[str]) -> str:
    """A sentence on what a program takes that nobody gives; empty where that is nothing."""
    if not missing:
        return ""
    names = listed([*missing[:_MOST_TOLD], *([f"{len(missing) - _MOST_TOLD} more"] if missing[_MOST_TOLD:] else [])])
    return f"the program is given no {names} (--arg {missing[0]}=... gives one)"


@contextmanager
def telling(missing: Collection[str]) -> Iterator[None]:
    """A problem is told with what the program takes and is not given, on which it may rest."""
    try:
        yield
    except InputError as problem:
        said = not_given([*missing])
        raise InputError(f"{problem}; {said}" if said and said not in str(problem) else str(problem)) from None
