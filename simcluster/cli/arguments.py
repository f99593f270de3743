"""Argument parser of all commands, which also accepts scenario overrides and explains wrong options."""

from __future__ import annotations

import argparse
import re
import textwrap
from argparse import Action, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from simcluster.base.counts import float_or_nan
from simcluster.base.errors import InputError
from simcluster.base.texts import did_you_mean

if TYPE_CHECKING:
    from fractions import Fraction

_DOTTED_OPTION = re.compile(r"--[A-Za-z_]\w*(?:\.\w+)+\+?(?:=.*)?", re.DOTALL)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*\+?=.*", re.DOTALL)
_OPTION = re.compile(r"--?[A-Za-z][\w-]*(?:=.*)?", re.DOTALL)
_OUTPUT = {"o", "out", "output", "save", "write", "file", "export", "csv"}
_PICTURE = {"plot", "figure", "fig", "image", "png", "svg", "draw", "picture", "chart"}
_PROCESSES = {"j", "jobs", "workers", "processes", "procs", "threads", "cores", "parallel", "executor"}
_INPUT = {"i", "c", "config", "input", "scenario", "yaml"}
"""Words in option names of other programs."""
_EXECUTORS = ("executor", "workers")
"""Destinations of the options that set processes."""
TOP_LEVEL_KEYS = ("name", "cluster", "model", "gpus", "software", "steps", "seed", "replicas", "engine")
"""Top-level keys with one word or number as value: --gpus 64 changes the scenario like --parallel.tp 8."""
_REQUIRED = "the following arguments are required: "
_ARGUMENT_ERROR = re.compile(r"argument ([^:]+): (.*)", re.DOTALL)
_NUMBER_ERROR = re.compile(r"invalid (int|float) value: (.*)", re.DOTALL)


class CommandParser(argparse.ArgumentParser):
    """Argument parser that allows no abbreviations and raises InputError with a hint."""

    def __init__(self, **settings: Any) -> None:
        layout = argparse.RawDescriptionHelpFormatter  # keeps the lines of examples
        super().__init__(**{"allow_abbrev": False, "add_help": False, "formatter_class": layout, **settings})
        self.files: dict[str, str] = {}  # kind of output file by argument
        self.values: dict[str, list[str]] = {}  # possible values by argument, for completion
        self._common: list[str] = []  # the last line of the help
        self.commands_with: Callable[[str], list[str]] = lambda option: []  # other commands with an option

    def add_declared(
        self, arguments: Mapping[str, Any], shared: Mapping[str, Any], group: argparse._ArgumentGroup | None = None
    ) -> None:
        """Add a command's arguments from ``commands.toml``; ``shared``: settings that arguments have in common."""
        for names, said in arguments.items():
            settings = {**shared.get(names, {}), **({"help": said} if isinstance(said, str) else said)}
            file, values = settings.pop("file", None), settings.pop("values", None)
            if file:
                settings.setdefault("metavar", "FILE")
            if "type" in settings:
                settings["type"] = TYPES[settings["type"]]
            if settings.get("action") == "append":
                settings["default"] = []
            action = (group or self).add_argument(*names.split(), **settings)
            if file:
                self.files[action.dest] = file
            if values:
                self.values[action.dest] = values

    def move_to_common(self, option: str) -> None:
        """Move an option in the help text from the option list to the line of common options."""
        action = self.options[option]
        metavar = f" {action.metavar}" if isinstance(action.metavar, str) else ""
        self._common.append(f"{', '.join(action.option_strings)}{metavar}: {action.help}")
        action.help = argparse.SUPPRESS

    def add_usage(self, examples: str) -> None:
        """Set the usage line, and the examples and common options at the end of the help text."""
        words = [self.prog]
        for action in self._actions:
            name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
            name += " ..." if action.nargs in ("*", "+") else ""
            if not action.option_strings:
                words.append(f"[{name}]" if action.nargs in ("?", "*") else name)
            elif action.required:
                words.append(f"{action.option_strings[-1]} {name}")
        self.usage = " ".join([*words, "[OPTIONS]"])
        common = textwrap.fill(f"common options: {'; '.join(self._common)}", 100)
        self.epilog = f"{examples.rstrip()}\n\n{common}"

    def error(self, message: str) -> NoReturn:
        """Raise InputError, with an improved text, for an error message of argparse."""
        raise InputError(f"{self._rewrite_error(message)}; see {self.prog} --help")

    def _rewrite_error(self, message: str) -> str:
        if message.startswith(_REQUIRED):
            names = message.removeprefix(_REQUIRED).split(", ")
            needs = " ".join([*self._required_names(), *(self._option_usage(each) for each in names if each[0] == "-")])
            are = f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'}"
            return f"{are} required and missing; write {self.prog} {needs}"
        found = _ARGUMENT_ERROR.fullmatch(message)
        if not found:
            return message
        name, what = found[1].partition("/")[0], found[2]
        if what.startswith("expected"):
            dash = f", and a value that begins with a dash as {name}=-1" if name.startswith("--") else ""
            return f"{name} needs a value and has none; write {self._option_usage(name)}{dash}"
        if kind := _NUMBER_ERROR.fullmatch(what):
            of = "a whole number" if kind[1] == "int" else "a number"
            written = self._option_usage(name)
            return f"{name}: {kind[2]} is not {of}; write {written} with {of} for {written.split()[-1]}"
        if what.startswith("ignored explicit argument"):
            return f"{name} takes no value, got {what.rpartition(' argument ')[2]}; write {name} alone"
        return f"{name}: {what}"

    def _required_names(self) -> list[str]:
        taken = [action for action in self._actions if not action.option_strings and action.required]
        return [action.metavar if isinstance(action.metavar, str) else action.dest.upper() for action in taken]

    def _option_usage(self, name: str) -> str:
        action = self.options.get(name.partition("/")[0])
        if action is None:
            return name
        metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        return f"{name.partition('/')[0]} {metavar}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Check a value against the option's choices; the error suggests the most similar choice."""
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            hint = did_you_mean(str(value), known)
            raise argparse.ArgumentError(action, f"must be one of {', '.join(known)}, got {value!r}{hint}")

    @property
    def accepts_overrides(self) -> bool:
        """Whether the command accepts overrides of scenario keys (it has the option --set)."""
        return "--set" in self.options

    @property
    def options(self) -> dict[str, argparse.Action]:
        """Argparse actions of all options, by option name."""
        return {option: action for action in self._actions for option in action.option_strings}

    @property
    def positionals_text(self) -> str:
        """Sentence that lists the command's positional arguments."""
        names = [str(action.metavar or action.dest) for action in self._actions if not action.option_strings]
        return f"{self.prog} takes {' '.join(names).upper() or 'options alone'}"

    def split_overrides(self, argv: Iterable[str]) -> tuple[list[str], list[str]]:
        """Separate overrides such as "parallel.tp=8" from all other arguments; return (others, overrides).

        Overrides are ``--parallel.tp 8`` and ``--parallel.tp=8`` (no option has a dot in its name), ``--gpus 64`` if
        the command has no such option, and ``parallel.tp=8`` unless an option that takes a value precedes it.
        """
        kept: list[str] = []
        overrides: list[str] = []
        rest = iter(argv)
        for argument in rest:
            path, equals, value = argument.removeprefix("--").partition("=")
            if self.is_override(argument):
                given = value if equals else next(rest, None)
                if given is None:
                    raise InputError(f"{argument} needs a value and has none; write {argument} VALUE")
                overrides.append(f"{path}={given}")
            elif _ASSIGNMENT.fullmatch(argument) and not (kept and self._expects_value(kept[-1])):
                overrides.append(argument)
            else:
                kept.append(argument)
        return kept, overrides

    def is_override(self, argument: str) -> bool:
        """Return whether an argument sets a scenario key, as ``--parallel.tp`` does."""
        name = argument.partition("=")[0]
        plain = self.reads_scenarios and name[:2] == "--" and name[2:] in TOP_LEVEL_KEYS and name not in self.options
        return plain or _DOTTED_OPTION.fullmatch(argument) is not None

    def refuse_unknown_options(self, argv: Sequence[str]) -> None:
        """Raise InputError for the first unknown option, since argparse's error would mislead."""
        known = self.options
        for argument, before in zip(argv, ("", *argv), strict=False):
            name = argument.partition("=")[0]
            if argument == "--":
                return
            option, equals, value = (before, "=", argument) if self._expects_value(before) else argument.partition("=")
            if equals and not value and self._expects_value(option):
                raise InputError(
                    f"{option} needs a value, and {argument!r} has an empty one; write {self._option_usage(option)}"
                )
            if self._expects_value(before) or not _OPTION.fullmatch(argument) or name in known:
                continue
            if name[1] != "-" and name[:2] in known:  # -ofile
                continue
            raise InputError(f"unknown option {name!r}{self._suggest_option(name)}; see {self.prog} --help")

    def _suggest_option(self, name: str) -> str:
        if self.accepts_overrides:
            from simcluster.scenario.key_paths import find_key_paths, is_section  # heavy: only for a mistake

            if self.reads_scenarios and is_section(name[2:]):
                return f"; the section {name[2:]} of a scenario is changed by {name}.KEY or {name[2:]}=VALUE"
            if meant := self._suggest_by_word(name):
                return meant
            places = find_key_paths(name) if len(name) > 3 else []
            if not self.reads_scenarios:  # the document is a topology
                places = [each.removeprefix("cluster.") for each in places if each.startswith("cluster.")]
            exact = [each for each in places if each.rpartition(".")[2] == name.strip("-").replace("-", "_")]
            if exact or (places and not did_you_mean(name, self.options, cutoff=0.8)):
                ways = [
                    f"--{place} VALUE" if self.is_override(f"--{place}") else f"--set {place}=VALUE"
                    for place in exact or places
                ]
                return f"; did you mean {' or '.join(ways)}?"
        near = did_you_mean(name, self.options, cutoff=0.8) or self._suggest_by_word(name)
        if not near and (others := self.commands_with(name)):
            return f"; it is an option of {' and of '.join(others)}: use that, or omit it"
        return near or did_you_mean(name, self.options, cutoff=0.7) or self._list_options()

    @property
    def _long_option_names(self) -> dict[str, str]:
        return {action.dest: _long_option_name(action) for action in self._actions if action.option_strings}

    def _suggest_by_word(self, name: str) -> str:
        words = set(name.strip("-").split("-"))
        drawn = [dest for dest, kind in self.files.items() if kind in ("figure", "page")] if words & _PICTURE else []
        dests = {*(drawn or (self.files if words & _OUTPUT else ())), *(_EXECUTORS if words & _PROCESSES else ())}
        found = [self._option_usage(option) for dest, option in self._long_option_names.items() if dest in dests]
        if not found and words & _INPUT and self._required_names():
            return f"; {self.positionals_text}, without an option name before it"
        return f"; use {' or '.join(found)}" if found else ""

    def _list_options(self) -> str:
        long = self._long_option_names
        keys = "; to change a key of the file, use --set KEY=VALUE" if self.accepts_overrides else ""
        return f"; use one of {', '.join(long.values())}{keys}"

    @property
    def reads_scenarios(self) -> bool:
        """Whether one of the command's arguments is a scenario."""
        return any("scenarios" in kinds for kinds in self.values.values())

    def _expects_value(self, argument: str) -> bool:
        action = self.options.get(argument)
        return action is not None and action.nargs != 0


def _long_option_name(action: Action) -> str:
    return max(action.option_strings, key=lambda name: name[:2] == "--")


def _parse_integer(least: int, text: str) -> int:
    if not text.isascii() or not text.isdigit() or not least <= int(text[:20]) <= 10**9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


def _parse_time(text: str) -> Fraction:
    from fractions import Fraction  # slow to import

    size = float_or_nan(text)
    if not (size == 0 or 1e-12 <= size <= 1e12):  # also keeps Fraction("1e999999999") from being built
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time; write a number without unit, 0 or between 1e-12 and 1e12: all times of this "
            f"command are in one unit of your choice"
        )
    return Fraction(text) if size else Fraction(0)


def _parse_share(text: str) -> float:
    number, percent, rest = text.strip().partition("%")
    value = float_or_nan(number) / (100 if percent else 1)
    if rest or not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share above 0 and below 100 %, as in 0.1% or 0.001")
    return value


TYPES: dict[str, Callable[[str], object]] = {
    "int": int,
    "float": float,
    "count": partial(_parse_integer, 1),
    "gpus": partial(_parse_integer, 2),
    "rank": partial(_parse_integer, 0),
    "share": _parse_share,
    "time": _parse_time,
}
"""Converters of an argument's text, by their name in ``commands.toml``."""


_QUOTED = re.compile(r"'([^'\n]+)'")
_UNKNOWN_KEY = re.compile(r"(?:^|: )(\w+): unknown key '\1'(?:$|; known)")
"""An unknown key at the top of a document, without a similar one."""
_SEPARATORS = re.compile(r"[,:=+\s]+")


def add_option_name(text: str, args: Namespace, actions: Iterable[Action]) -> str:
    """Add the option's name to an error about its value: "--window: '3' is not a quantity; ...".

    A message that already names an option, a file or a key stays as it is.
    """
    if key := _UNKNOWN_KEY.search(text):
        return text + _option_hint(key[1], actions)
    quoted = _QUOTED.search(text)
    if quoted is None or "--" in text or ":" in text[: quoted.start()] or "\n" in text:
        return text
    found = [one for one in dict.fromkeys(actions) if one.option_strings and quoted[1] in _words_of_value(args, one)]
    if len(found) != 1:
        return text
    option, before = _long_option_name(found[0]), text[: quoted.start()].strip()
    plain = option.lstrip("-").replace("-", " ")
    return f"{option} {text[quoted.start() :]}" if before == plain else f"{option}: {text}"


def _option_hint(key: str, actions: Iterable[Action]) -> str:
    option = f"--{key.replace('_', '-')}"
    named = [action for action in actions if option in action.option_strings]
    return f"; the command has an option of that name: omit the key, and give {option}" if named else ""


def _words_of_value(args: Namespace, action: Action) -> set[str]:
    value = getattr(args, action.dest, None)
    texts = [
        str(each) for each in (value if isinstance(value, list) else [value]) if each not in (None, action.default)
    ]
    return {part for text in texts for part in (text, text.partition("=")[0], *_SEPARATORS.split(text))}
