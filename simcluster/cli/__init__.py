"""The command line: finds the command, turns errors into exit statuses.

Exit status 0 when the work was done, 2 for a bad input (one message on stderr), 1 for a failure of ours (with its
traceback), 130 on Ctrl-C.  A command is a module here with ``add_parser(subparsers)``, which imports nothing heavy,
and ``run(args) -> int``; only the chosen command's module is imported, so that help is immediate.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import keyword
import os
import re
import sys
import traceback
from typing import Any, NoReturn

from simcluster.errors import InputError

COMMANDS = (
    "run",
    "compare",
    "schedule",
    "topology",
    "collective",
    "share",
    "validate",
    "replay",
    "stragglers",
    "diff",
    "report",
    "sensitivity",
    "check",
    "sweep",
    "calibrate",
    "fit",
    "import",
    "chakra",
)
TAKES_OVERRIDES = (
    "run",
    "compare",
    "topology",
    "collective",
    "stragglers",
    "diff",
    "report",
    "sensitivity",
    "check",
    "import",
    "chakra",
    "sweep",
)
"""Commands whose document can be changed by --parallel.tp 8, --parallel.tp=8 or parallel.tp=8."""

_DOTTED_OPTION = re.compile(r"--([A-Za-z_]\w*(?:\.\w+)+)(?:=(.*))?", re.DOTALL)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*=.*", re.DOTALL)
_BROKEN_PIPE = 141  # what a shell reports of a program that SIGPIPE ended


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit status and never raises."""
    try:
        status = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return status
    except InputError as error:
        print(f"simcluster: error: {error}", file=sys.stderr)
        return 2
    except SystemExit as leaving:  # --help and --version
        return leaving.code if isinstance(leaving.code, int) else 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output left (| head); keep Python from complaining while it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except Exception:
        traceback.print_exc()
        print("simcluster: internal failure: this is a bug in simcluster, not in your input", file=sys.stderr)
        return 1


def split_overrides(argv: list[str]) -> tuple[list[str], list[str]]:
    """Arguments without overrides, and the overrides as "parallel.tp=8".

    Overrides are ``--parallel.tp 8`` and ``--parallel.tp=8`` (no option of ours has a dot in its name) and
    ``parallel.tp=8`` where it is not the value of an option just before it.
    """
    kept: list[str] = []
    overrides: list[str] = []
    rest = iter(argv)
    for argument in rest:
        option = _DOTTED_OPTION.fullmatch(argument)
        if option:
            value = option[2] if option[2] is not None else next(rest, None)
            if value is None:
                raise InputError(f"{argument} needs a value, as in {argument} 8")
            overrides.append(f"{option[1]}={value}")
        elif _ASSIGNMENT.fullmatch(argument) and not (kept and _awaits_value(kept[-1])):
            overrides.append(argument)
        else:
            kept.append(argument)
    return kept, overrides


def _awaits_value(argument: str) -> bool:
    return argument.startswith("--") and "=" not in argument


class _Parser(argparse.ArgumentParser):
    """Whole option names only, and errors as InputError; commands' parsers are of this class too."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}\n{self.format_usage().rstrip()}")


class _Version(argparse.Action):
    def __init__(self, option_strings: list[str], dest: str, **_: object) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help="print the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import PackageNotFoundError, version  # slow to import; wanted here only

        try:
            print(f"simcluster {version('simcluster')}")
        except PackageNotFoundError:
            print("simcluster, run from its source without being installed")
        parser.exit()


def _dispatch(argv: list[str]) -> int:
    available = [name for name in COMMANDS if importlib.util.find_spec(_module(name))]
    command = argv[0] if argv and not argv[0].startswith("-") else None
    if command is not None and command not in available:
        raise InputError(f"unknown command {command!r}{_did_you_mean(command, available)}; see simcluster --help")
    parser = _Parser(
        prog="simcluster",
        description="Replay one training step of a large model on a GPU cluster.",
        epilog="simcluster COMMAND --help describes a command.",
    )
    parser.add_argument("--version", action=_Version)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    modules = {name: importlib.import_module(_module(name)) for name in available if command in (None, name)}
    for module in modules.values():
        module.add_parser(subparsers)
    overrides: list[str] = []
    if command in TAKES_OVERRIDES:
        argv, overrides = split_overrides(argv)
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        chosen = subparsers.choices.get(command or "", parser)
        options = [option for action in chosen._actions for option in action.option_strings]
        raise InputError(f"unknown argument {unknown[0]!r}{_did_you_mean(unknown[0], options)}; {_help(command)}")
    if args.command is None:
        parser.print_help()
        raise InputError("name a command")
    args.overrides = overrides
    status: int = modules[args.command].run(args)
    return status


def _module(command: str) -> str:
    """Where a command is; one called as a word of Python has an underscore behind it."""
    return f"simcluster.cli.{command}{'_' * keyword.iskeyword(command)}"


def _help(command: str | None) -> str:
    return f"see simcluster {command} --help" if command else "see simcluster --help"


def _did_you_mean(word: str, known: list[str]) -> str:
    import difflib  # only for a mistake

    near = difflib.get_close_matches(word.partition("=")[0], known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""
