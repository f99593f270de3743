"""The command line: one module per command.

Exit status: 0 if the work was done, 2 for bad input or no result (one message on stderr), 1 for a bug (with its
traceback), 130 on Ctrl-C. A command is an entry in ``commands.toml`` and a module with ``run(args)``, here or where the
entry says. Only the module of the chosen command is imported, and none for help.
"""

from __future__ import annotations

import argparse
import atexit
import builtins
import contextlib
import errno
import gc
import importlib
import io
import keyword
import os
import re
import sys
import tomllib
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError, describe_file_error
from simcluster.base.gc_pause import pause_gc
from simcluster.base.progress import listen_to_notes, no_time_limit
from simcluster.base.texts import did_you_mean
from simcluster.base.version import VERSION
from simcluster.cli import outputs, terminal
from simcluster.cli.arguments import CommandParser, add_option_name
from simcluster.documents.trusted_text import allow_python_code

_TEXTS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))
ENTRIES: dict[str, Any] = _TEXTS["commands"]
"""Texts and arguments of every command, by its name."""
COMMANDS = tuple(name for names in _TEXTS["groups"].values() for name in names)
"""Every command, in the order of the help."""
BUDGET = {ENTRIES[name]["called"].removeprefix("budget "): name for name in _TEXTS["groups"]["budget"]}
"""Commands that ``simcluster budget`` starts, by its next word."""
_SYNONYMS = {
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
"""Commands by their names in other programs."""
_PICTURES = {"figure", "links", "memory"}
"""Kinds of file that are, or may be, pictures."""
_BROKEN_PIPE = 141  # what a shell reports of a program that SIGPIPE ended
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_TRUNCATED_CODE = f"delete the folders __pycache__ in {Path(__file__).parent.parent}, and run the same command again"
_SHOWN_LENGTH = 200
_LONG_WORD = re.compile(rf"\S{{{4 * _SHOWN_LENGTH},}}")
"""A word that is too long for text or a file name, and is shortened in messages."""


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status, without raising exceptions."""
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)  # or Python collects garbage before it exits: 0.04 instead of 0.3 s of a sweep
    terminal.replace_closed_streams()
    terminal.replace_unencodable_characters(sys.stdout, sys.stderr)
    with terminal.escape_output():
        return _run_and_get_status(argv)


def _run_and_get_status(argv: list[str] | None) -> int:
    try:
        _dispatch_command(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return 0
    except InputError as error:
        return _print_error(str(error))
    except SystemExit as leaving:  # --help and --version
        return leaving.code if isinstance(leaving.code, int) else 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output has closed it (| head)
        _redirect_stdout_to_null()
        return _BROKEN_PIPE
    except Exception as problem:
        if said := _system_error_message(problem):
            return _print_error(said)
        traceback.print_exc()
        print("simcluster: internal failure: this is a bug in simcluster, not in your input", file=sys.stderr)
        return 1


def _system_error_message(problem: Exception) -> str:
    if isinstance(problem, OSError) and problem.errno in _NO_SPACE:
        if problem.filename is None:
            _redirect_stdout_to_null()
        return f"{problem.filename or 'standard output'} cannot be written ({problem.strerror}); free some space"
    if isinstance(problem, OSError) and (told := describe_file_error(problem)):
        return told
    if isinstance(problem, EOFError) and "marshal" in str(problem):  # Python before 3.12.8 does not report it itself
        return f"compiled Python files of simcluster are truncated, as after a full disk: {_TRUNCATED_CODE}"
    return ""


def _redirect_stdout_to_null() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_error(text: str) -> int:
    short = _LONG_WORD.sub(lambda found: f"{found[0][:_SHOWN_LENGTH]}...", text)
    print(f"{terminal.style_text('simcluster: error:', 'red', sys.stderr)} {short}", file=sys.stderr)
    return 2


def make_parser(command: str, kind: str = "") -> CommandParser:
    """Return a command's argument parser; for ``import``, ``kind`` selects one kind of file."""
    entry = ENTRIES[command]
    parser = CommandParser(prog=f"simcluster {entry.get('called', command)}", description=entry["description"])
    parser.set_defaults(command=command)
    parser.commands_with = _commands_with_option
    kinds = entry.get("kinds", {})
    other = set(" ".join(kinds.values()).split()) - set(kinds[kind].split()) if kind else set()
    parser.add_declared(
        {names: said for names, said in entry["arguments"].items() if names not in other}, _TEXTS["options"]
    )
    for title, arguments in entry.get("groups", {}).items():
        parser.add_declared(arguments, _TEXTS["options"], parser.add_argument_group(title))
    draws = bool(_PICTURES & set(parser.files.values()))
    for names, said in _TEXTS["common"].items():
        if command not in said["without"] and (draws or not said.get("pictures")):
            free = " ".join(each for each in names.split() if each not in parser.options)
            parser.add_declared({free: {key: said[key] for key in said if key not in ("without", "pictures")}}, {})
            parser.move_to_common(free.split()[-1])
    parser.add_usage(_select_example_lines(entry["examples"], kind, kinds) if kind else entry["examples"])
    return parser


def _select_example_lines(text: str, kind: str, kinds: Mapping[str, str]) -> str:
    begins = re.compile(rf"  (?:.*simcluster import )?({'|'.join(kinds)}) ")
    kept = []
    shown = True
    for line in text.splitlines():
        found = begins.match(line)
        shown = found[1] == kind if found else shown or not line.startswith("   ")
        if shown:
            kept.append(line)
    return "\n".join(kept)


def _commands_with_option(option: str) -> list[str]:
    groups = {name: (entry["arguments"], *entry.get("groups", {}).values()) for name, entry in ENTRIES.items()}
    return [f"simcluster {name}" for name, found in groups.items() if option in " ".join(map(" ".join, found)).split()]


def _command_overview() -> str:
    lines = []
    for group, names in _TEXTS["groups"].items():
        shown = _TEXTS["budget"] if group == "budget" else {name: ENTRIES[name]["help"] for name in names}
        lines += [f"{'' if place else group:<11}{name:<13}{shown[name]}" for place, name in enumerate(shown)]
    return "\n".join([_TEXTS["head"], *lines, _TEXTS["foot"]])


def command_module_name(command: str) -> str:
    """Return the name of a command's module, with an underscore appended to words that Python reserves."""
    own = f"cli.{command}{'_' * (keyword.iskeyword(command) or hasattr(builtins, command))}"
    return f"simcluster.{ENTRIES[command].get('module', own)}"


def _check_command(word: str, names: Iterable[str], program: str) -> str:
    if word in names:
        return word
    if word.startswith("-"):
        near = did_you_mean(word, ["--version", "--help"], 0.6) or "; options come after the command"
        raise InputError(f"unknown option {word!r}{near}; see {program} --help")
    meant = f"; did you mean {_SYNONYMS[word]!r}?" if word in _SYNONYMS else did_you_mean(word, names, 0.6)
    raise InputError(f"unknown command {word!r}{meant}; see {program} --help")


def _dispatch_command(argv: list[str]) -> None:
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    if argv[:1] == ["budget"]:
        if argv[1:2] in ([], ["-h"], ["--help"]):
            lines = [f"  simcluster budget {word:<9}{ENTRIES[name]['help']}" for word, name in BUDGET.items()]
            print("\n".join(["usage: simcluster budget COMMAND ...", "", *lines]))
            return
        argv = [BUDGET[_check_command(argv[1], BUDGET, "simcluster budget")], *argv[2:]]
    if argv[:1] in ([], ["-h"], ["--help"]):
        print(_command_overview())
        return
    if argv[0] in ("-V", "--version"):
        print(f"simcluster {VERSION}")
        return
    command = _check_command(argv[0], COMMANDS, "simcluster")
    asks = command == "import" and argv[1:2] and argv[1] in ENTRIES[command]["kinds"] and {"-h", "--help"} & {*argv}
    parser = make_parser(command, argv[1] if asks else "")
    given, overrides = argv, list[str]()
    argv = argv[1:]
    if parser.accepts_overrides:
        argv, overrides = parser.split_overrides(argv)
    parser.refuse_unknown_options(argv)
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        for path in getattr(args, "set", None) or ():
            if "=" not in path and not unknown[0].startswith("-"):
                raise InputError(f"--set {path} has no value; write --set {path}={unknown[0]} as one word")
        prior = given[max(given.index(unknown[0]) - 1, 0)] if unknown[0] in given else ""
        hint = f", write '{prior} {unknown[0]}' in quotes if that is one value"
        hint = "" if prior[:1] in ("", "-") or prior == command else hint
        raise InputError(
            f"unexpected argument {unknown[0]!r}: {parser.positionals_text}; omit it{hint}, or see {parser.prog} --help"
        )
    args.overrides = overrides
    files = []
    for dest, kind in parser.files.items():
        name = getattr(args, dest)
        if name and (dest, name) != ("json", "-"):
            setattr(args, dest, outputs.check_output_path(name, kind))
            files.append(getattr(args, dest))
    if "picture_size" in args:
        outputs.check_picture_size(args, files)
    written = [*files, *([Path(args.trace)] if args.command == "run" and args.trace else [])]
    outputs.require_distinct_files(written)
    outputs.require_libraries(args)
    before = [outputs.file_version(path) for path in files]
    progress = contextlib.redirect_stderr(io.StringIO()) if args.quiet else terminal.track_progress(args.command)
    with progress, allow_python_code(getattr(args, "allow_python", False)), listen_to_notes(_print_note):
        with pause_gc():  # 0.6 s instead of 0.7
            module = importlib.import_module(command_module_name(args.command))
        replaced = [path for path in written if path != getattr(args, "store", None)]  # a store is read first
        with no_time_limit(getattr(args, "yes", False)), outputs.protect_inputs(replaced):
            _run_command(module, args, parser)
        sys.stdout.flush()
        for path, then in zip(files, before, strict=True):
            if outputs.file_version(path) != then and path not in getattr(args, "told", ()):
                sys.stderr.write(f"wrote {path}\n")
    if nothing := getattr(args, "came_to_nothing", ""):
        raise InputError(nothing)


def _run_command(module: Any, args: argparse.Namespace, parser: CommandParser) -> None:
    try:
        module.run(args)
    except InputError as problem:
        text = add_option_name(str(problem), args, parser.options.values())
        if text == str(problem):
            raise
        raise InputError(text) from problem


def _print_note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)
