"""simcluster completion: shell scripts for tab completion of commands, options, files, names and keys.

The script runs this command at every TAB with the line so far, so nothing heavy may be imported: keys of a scenario and
names in catalogues are in ``words.txt``, which tests/test_completion.py --regenerate derives from the models.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from simcluster.base.errors import InputError
from simcluster.cli import BUDGET, COMMANDS, make_parser
from simcluster.cli.arguments import CommandParser
from simcluster.documents.builtin_documents import builtin_names

_BASH = r"""
_simcluster() {
    local IFS=$'\n'
    COMPREPLY=($(command simcluster completion bash --line "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
}
complete -o nospace -F _simcluster simcluster
"""
_ZSH = r"""
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_simcluster() {
    local -a found open whole
    local line="${(j: :)words[1,CURRENT-1]} $QIPREFIX$PREFIX" none=1
    found=("${(@f)$(command simcluster completion zsh --line "$line" 2>/dev/null)}")
    open=(${(M)found:#*[/=.,]})
    whole=(${found:#*[/=.,]})
    (( $#open )) && compadd -Q -S '' -- $open && none=0
    (( $#whole )) && compadd -Q -- $whole && none=0
    return none
}
compdef _simcluster simcluster
"""
_FISH = r"""
function __simcluster
    command simcluster completion fish --line (commandline -cp | string collect) 2>/dev/null
end
complete -c simcluster -f -a '(__simcluster)'
"""
_SPECIAL = re.compile(r"[^\w@%+=:,./~-]")
"""Characters that mean something to a shell."""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def run(args: argparse.Namespace) -> None:
    """Print a shell's completion script, or the completions of a partial command line."""
    from simcluster.cli import common
    from simcluster.cli.terminal import write_json

    if args.line is None:
        script = _SCRIPTS[args.shell].lstrip()
        common.print_answer(args, lambda: script.removesuffix("\n"), lambda: {"shell": args.shell, "script": script})
        return
    found = complete_line(args.line)
    if args.json:
        write_json(args.json, found)
    if args.json != "-":
        print("".join(f"{each}\n" for each in _format_for_shell(args.shell, found, args.line)), end="")


def _format_for_shell(shell: str, words: list[str], line: str) -> list[str]:
    """Quote and escape completions as the shell requires.

    fish escapes what it inserts; the others insert text unchanged, and all of them close a quote. bash replaces only
    what follows the last = or : of a word (COMP_WORDBREAKS) and adds no space, so complete words get one here.
    """
    words = [each for each in words if each.isprintable()]  # completions are lines, with a description after a tab
    if shell == "fish" or find_missing_quote(line):
        return words
    words = [_SPECIAL.sub(r"\\\g<0>", each) for each in words]
    if shell == "zsh":
        return words
    word = line.rpartition(" ")[2]
    kept = max(word.rfind("="), word.rfind(":")) + 1
    return [each[kept:] if each.endswith(("/", "=", ".", ",")) else f"{each[kept:]} " for each in words]


WORDS = Path(__file__).with_name("words.txt")
"""A line for each scenario path with the words that it can be, and for each list of names, with a + before."""

_FILES = ("FILE", "FOLDER", "DIR", "LOG", "FITS")
_PATHS = ("A.B=C", "A.B=X,Y")


def complete_line(line: str) -> list[str]:
    """Return the sorted completions of a command line's last word."""
    words = _split_words(line)
    program = next((place for place, each in enumerate(words[:-1]) if Path(each).name == "simcluster"), 0)
    *before, word = words[program + 1 :] or [""]
    if not before:
        return _filter_by_prefix(word, [*COMMANDS, "budget", "help", "--help", "--version"])
    if before[0] in ("budget", "help") and not before[1:]:
        return _filter_by_prefix(word, BUDGET if before[0] == "budget" else COMMANDS)
    if before[0] == "budget":
        before = [BUDGET.get(before[1], ""), *before[2:]]
    if before[0] not in COMMANDS:
        return []
    parser = make_parser(before[0])
    try:
        return sorted(set(_complete_argument(parser, before[1:], word)))
    except (InputError, OSError):
        return []


def find_missing_quote(line: str) -> str | None:
    """Return the quotation mark that the line leaves open, "" if none; None if no mark would close the line."""
    for mark in ("", '"', "'"):
        try:
            shlex.split(line + mark)
        except ValueError:
            continue
        return mark
    return None


def _split_words(line: str) -> list[str]:
    mark = find_missing_quote(line)
    words = [] if mark is None else shlex.split(line + mark)
    new = not mark and line[-1:].isspace() and not line.endswith("\\ ")
    return [*words, ""] if new or not words else words


def _complete_argument(parser: CommandParser, before: list[str], word: str) -> list[str]:
    last = before[-1] if before else ""
    option = parser.options.get(last)
    if option and option.nargs != 0:
        return _complete_value(parser, option, word)
    overridden = parser.accepts_overrides
    if overridden and parser.is_override(last) and "=" not in last:
        return _filter_by_prefix(word, _lookup_words(_scenario_path(last[2:], parser.prog)))
    if word.startswith("-"):
        name, equals, value = word.partition("=")
        if equals and name in parser.options:
            return [f"{name}={each}" for each in _complete_value(parser, parser.options[name], value)]
        dotted = [f"--{each}" for each in _complete_path(word[2:], parser.prog)] if overridden and word[2:] else []
        return [*_filter_by_prefix(word, parser.options), *dotted]
    place = _find_positional(parser, before)
    found = _complete_value(parser, place, word) if place else []
    return found or (_complete_path(word, parser.prog) if overridden else [])


def _find_positional(parser: CommandParser, before: list[str]) -> argparse.Action | None:
    kept, _ = parser.split_overrides(before) if parser.accepts_overrides else (before, [])
    count, skip = 0, False
    for word in kept:
        option = parser.options.get(word)
        count += not skip and not word.startswith("-")
        skip = option is not None and option.nargs != 0
    places = [action for action in parser._actions if not action.option_strings]
    many = places and places[-1].nargs in ("+", "*")
    return places[min(count, len(places) - 1)] if places and (many or count < len(places)) else None


def _complete_value(parser: CommandParser, action: argparse.Action, word: str) -> list[str]:
    if action.metavar in _PATHS:
        return _complete_path(word, parser.prog, several=action.metavar == "A.B=X,Y")
    if action.choices:
        return _filter_by_prefix(word, map(str, action.choices))
    found: list[str] = []
    is_file = str(action.metavar).startswith(_FILES)
    for kind in parser.values.get(action.dest, ["files"] if is_file else []):
        if kind == "files":
            found += _complete_file(word)
        else:
            found += _filter_by_prefix(word, _lookup_words(kind) if kind.startswith("+") else builtin_names(kind))
    return found


# --- scenario paths ---------------------------------------------------------------------------------------------------


def _complete_path(word: str, command: str, *, several: bool = False) -> list[str]:
    path, equals, value = word.partition("=")
    below = "cluster." if _takes_topology(command) and not word.startswith("cluster.") else ""
    if equals:
        done, comma, last = value.rpartition(",") if several else ("", "", value)
        words = _filter_by_prefix(last, _lookup_words(_scenario_path(path, command)))
        return [f"{path}={done}{comma}{each}" for each in words]
    names = [name.removeprefix(below) for name in _read_words() if name.startswith(below + word) and name[0] != "+"]
    found = []
    for name in names:
        dot = name.find(".", len(word))
        if dot < 0:
            found.append(f"{name}=")
        elif name[:dot] not in names:  # a schedule is a name, or has parameters: those after a dot are the user's
            found.append(name[: dot + 1])
    return found


def _takes_topology(command: str) -> bool:
    return command.endswith((" topology", " collective", " replay"))


def _scenario_path(path: str, command: str) -> str:
    return f"cluster.{path}" if _takes_topology(command) and not path.startswith("cluster.") else path


@cache
def _read_words() -> dict[str, list[str]]:
    lines = WORDS.read_text(encoding="utf-8").splitlines()
    return {name: words.split() for name, _, words in (line.partition(" ") for line in lines)}


def _lookup_words(name: str) -> list[str]:
    return _read_words().get(name, [])


# --- names and files --------------------------------------------------------------------------------------------------


def _filter_by_prefix(word: str, known: Iterable[str]) -> list[str]:
    return [each for each in known if each.startswith(word)]


def _complete_file(word: str) -> list[str]:
    folder, slash, name = word.rpartition("/")
    place = Path(f"{folder}{slash}" or ".").expanduser()
    if not place.is_dir():
        return []
    return [
        f"{folder}{slash}{entry.name}{'/' if entry.is_dir() else ''}"
        for entry in place.iterdir()
        if entry.name.startswith(name) and (name.startswith(".") or not entry.name.startswith("."))
    ]
