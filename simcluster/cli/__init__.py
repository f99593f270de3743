"""The command line: a module a command.

Exit status 0 when the work was done, 2 for a bad input or where nothing came of it (one message on stderr), 1 for a
failure of ours (with its traceback), 130 on Ctrl-C.  A command is an entry in ``commands.toml``, which says what it
takes, and a module with ``run(args)``, here or in a satellite, which the entry names; only the chosen command's module
is imported, and none for help.
"""

from __future__ import annotations

import argparse
import atexit
import builtins
import contextlib
import errno
import gc
import importlib
import importlib.util
import keyword
import os
import re
import sys
import tomllib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError, refused_by_system
from simcluster.base.gc_paused import collector_off
from simcluster.base.telling import however_long, notes_to
from simcluster.base.texts import did_you_mean
from simcluster.base.version import VERSION
from simcluster.cli.arguments import Parser
from simcluster.cli.outputs import (
    check_picture_size,
    inputs_kept,
    output_path,
    refuse_missing,
    require_two_names,
    written_at,
)
from simcluster.cli.terminal import escaping, never_fail, open_closed_streams, styled, working
from simcluster.documents.own_words import allowing_python

_SAID: dict[str, Any] = tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))
COMMANDS = tuple(_SAID["commands"])
"""Every command, in the order of the help."""
_MEANT = {
    **dict.fromkeys(("simulate", "sim", "play", "plot", "gantt"), "run"),
    **dict.fromkeys(("optimize", "optimise", "search", "tune", "best"), "plan"),
    **dict.fromkeys(("init", "create"), "new"),
    **dict.fromkeys(("serve", "ui", "gui", "web"), "studio"),
    "trace": "replay",
    "convert": "import",
    "info": "show",
    "describe": "show",
    "cost": "walls",
}
"""Commands by what other programs call them."""

_PICTURES = {"figure", "links", "memory"}
"""Kinds of file that are, or may be, pictures."""

_BROKEN_PIPE = 141  # what a shell reports of a program that SIGPIPE ended

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Of what stdout is, when there is no room for what is said; files are spoken for by who writes them."""

_CUT = f"delete the folders __pycache__ in {Path(__file__).parent.parent}, and run the same command again"

_KEPT = 200
_ENDLESS = re.compile(rf"\S{{{4 * _KEPT},}}")
"""A word that no person wrote, and no file is called: of it the beginning is enough."""


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit status and never raises."""
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)  # or Python goes through all there is before it ends: 0.04 instead of 0.3 s of a sweep
    open_closed_streams()
    never_fail(sys.stdout, sys.stderr)
    with escaping():
        return _status(argv)


def _status(argv: list[str] | None) -> int:
    try:
        _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return 0
    except InputError as error:
        return _refuse(str(error))
    except SystemExit as leaving:  # --help and --version
        return leaving.code if isinstance(leaving.code, int) else 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output left (| head)
        _say_no_more()
        return _BROKEN_PIPE
    except Exception as problem:
        if said := _of_the_system(problem):
            return _refuse(said)
        traceback.print_exc()
        print("simcluster: internal failure: this is a bug in simcluster, not in your input", file=sys.stderr)
        return 1


def _of_the_system(problem: Exception) -> str:
    """Return the message for a failure of the system; "" for one of ours."""
    if isinstance(problem, OSError) and problem.errno in _FULL:
        if problem.filename is None:
            _say_no_more()
        return (
            f"{problem.filename or 'standard output'} cannot be written ({problem.strerror}); make room where it goes"
        )
    if isinstance(problem, OSError) and (told := refused_by_system(problem)):
        return told
    if isinstance(problem, EOFError) and "marshal" in str(problem):  # no Python before 3.12.8 notices it itself
        return f"Python's own files of simcluster are cut, as a full disk leaves them: {_CUT}"
    return ""


def _say_no_more() -> None:
    """Keep Python from complaining, while it exits, of what it could not write."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse(text: str) -> int:
    short = _ENDLESS.sub(lambda found: f"{found[0][:_KEPT]}...", text)
    print(f"{styled('simcluster: error:', 'red', sys.stderr)} {short}", file=sys.stderr)
    return 2


def parser_of(command: str | None) -> tuple[Parser, dict[str, Parser]]:
    """Return the program's parser with that of one command, or of all: and those, by name."""
    parser = Parser(
        prog="simcluster",
        description="Replay one training step of a large model on a GPU cluster.",
        epilog="simcluster COMMAND --help describes a command. A scenario is a file, the name of one that ships "
        "(simcluster list scenarios), or - for standard input.",
    )
    parser.add_argument("--version", action=_Version)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name in COMMANDS if command is None else (command,):
        said = _SAID["commands"][name]
        one = subparsers.add_parser(name, help=said["help"], description=said["description"], epilog=said["examples"])
        one.commands_with = _commands_with
        one.take(said["arguments"], _SAID["options"])
        for title, arguments in said.get("groups", {}).items():
            one.take(arguments, _SAID["options"], one.add_argument_group(title))
        if _PICTURES & set(one.files.values()):
            free = {" ".join(each for each in names.split() if each not in one.options): said
                    for names, said in _SAID["pictures"].items()}  # fmt: skip
            one.take(free, _SAID["options"])
        if one.reads_files:
            one.take(_SAID["reading"], {})
        one.take(_SAID["always"], {})
    return parser, subparsers.choices


def _commands_with(option: str) -> list[str]:
    return [
        f"simcluster {name}"
        for name, said in _SAID["commands"].items()
        if any(
            option in names.split()
            for group in (said["arguments"], *said.get("groups", {}).values())
            for names in group
        )
    ]


def module_of(command: str) -> str:
    """Return a command's module: as ``commands.toml`` names it, else in ``cli``, with an underscore where Python has
    that word."""
    own = f"cli.{command}{'_' * (keyword.iskeyword(command) or hasattr(builtins, command))}"
    return f"simcluster.{_SAID['commands'][command].get('module', own)}"


class _Version(argparse.Action):
    def __init__(self, option_strings: list[str], dest: str, **_: object) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help="print the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"simcluster {VERSION}")
        parser.exit()


def _dispatch(argv: list[str]) -> None:
    command = argv[0] if argv and not argv[0].startswith("-") else None
    if command is not None and command not in COMMANDS:
        meant = f"; did you mean {_MEANT[command]!r}?" if command in _MEANT else did_you_mean(command, COMMANDS, 0.6)
        raise InputError(f"unknown command {command!r}{meant}; see simcluster --help")
    parser, commands = parser_of(command)
    overrides: list[str] = []
    given = argv
    if command is None:
        parser.refuse_unknown_options(argv)
    else:
        if commands[command].takes_overrides:
            argv, overrides = commands[command].split_overrides(argv)
        commands[command].refuse_unknown_options(argv[1:])
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        asked = commands[command] if command else parser
        for path in getattr(args, "set", None) or ():
            if "=" not in path and not unknown[0].startswith("-"):
                raise InputError(f"--set {path} has no value; write --set {path}={unknown[0]} as one word")
        prior = given[max(given.index(unknown[0]) - 1, 0)] if unknown[0] in given else ""
        whole = f", write '{prior} {unknown[0]}' in quotes if that is one value"
        whole = "" if prior[:1] in ("", "-") or prior == command else whole
        raise InputError(
            f"unexpected argument {unknown[0]!r}: {asked.placed}; leave it out{whole}, or see {asked.prog} --help"
        )
    if args.command is None:
        parser.print_help()
        raise InputError("name a command")
    args.overrides = overrides
    files = []
    for dest, kind in commands[args.command].files.items():
        name = getattr(args, dest)
        if name and (dest, name) != ("json", "-"):
            setattr(args, dest, output_path(name, kind))
            files.append(getattr(args, dest))
    if "picture_size" in args:
        check_picture_size(args, files)
    outputs = [*files, *([Path(args.trace)] if args.command == "run" and args.trace else [])]
    require_two_names(outputs)
    refuse_missing(args)
    before = [written_at(path) for path in files]
    allowed = getattr(args, "allow_python", False)
    with _silence() if args.quiet else working(args.command), allowing_python(allowed), notes_to(_note):
        with collector_off():  # 0.6 s instead of 0.7
            module = importlib.import_module(module_of(args.command))
        replaced = [path for path in outputs if path != getattr(args, "store", None)]  # a store is read, then grows
        with however_long(args.yes), inputs_kept(replaced):
            _run(module, args, commands[args.command])
        sys.stdout.flush()
        for path, then in zip(files, before, strict=True):
            if written_at(path) != then and path not in getattr(args, "told", ()):
                sys.stderr.write(f"wrote {path}\n")
    if nothing := getattr(args, "came_to_nothing", ""):
        raise InputError(nothing)


def _run(module: Any, args: argparse.Namespace, parser: Parser) -> None:
    try:
        module.run(args)
    except InputError as problem:
        from simcluster.cli.arguments import with_its_option  # only for a mistake

        told = with_its_option(str(problem), args, parser.options.values())
        if told == str(problem):
            raise
        raise InputError(told) from problem


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Silence stderr; what escapes is printed by ``main`` afterwards."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.redirect_stderr(nowhere):
        yield
