"""A launch command as a person pastes it: options with their values, and what starts the program before them.

Nothing in the text is run and no variable is looked up.  A value may hold one, as a path does, and is refused where it
is needed.  One that may stand for options is a problem, since they would be lost.  Whole scripts: ``launches``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from simcluster.base.errors import InputError

_MAX_CHARACTERS = 200_000
_SHELL = re.compile(r"\$\{[^}]*\}?|\$\(\([^)]*\)*|\$\([^)]*\)?|\$\w+|`[^`]*`?")
_NOT_READ = re.compile(r"\$\(([^\s()]*)\.\.\.:(\d+)\)")
"""Placeholder of a value that only a shell knows, in the words of a script."""
_COMMAND = re.compile(r"\$\([^)]*\)?|`[^`]*`?")
_OPTIONS = re.compile(r"\$\{?\w*(ARGS|ARGUMENTS|OPTIONS|OPTS|FLAGS|CONFIGS)\}?|\$\{\w+\[[@*]\]\}|\$[@*]", re.IGNORECASE)
_SPACE = "\x1f"  # in what a shell would run, which is one word
_LAUNCHERS = ("torch.distributed", "torchrun", "deepspeed", "accelerate")
_OPTION = re.compile(r"--?[A-Za-z]")
_OF_TORCHRUN = ("nnodes", "nproc-per-node", "node-rank", "master-addr", "master-port")
"""Options of torchrun that no program of Megatron-LM has: behind a program that reads them itself they say the same."""


BY_CONFIG = "write the scenario with simcluster import hugging-face and the config.json of its model"
"""Advice for a command that does not give the sizes of its model and is none that is read."""


@dataclass(frozen=True)
class Arguments:
    """``options`` by name without dashes, in the order given; ``launcher`` what stands before the program's own.

    ``problems`` are complaints about single words, to be told with all others; ``assumed`` what a script was taken to
    do, and ``unknown`` what is not known of the files that it names.  ``off`` are settings of a file that are off.
    """

    options: dict[str, tuple[str, ...]]
    launcher: tuple[str, ...] = ()
    launched: dict[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    off: tuple[str, ...] = ()

    def said(self, *names: str) -> str:
        """Return the words of the first of these options that has any, as one text; empty where none has."""
        return next((" ".join(words) for name in names if (words := self.options.get(name))), "")

    @property
    def gpus(self) -> int | None:
        """Return the processes that torchrun starts: --nnodes x --nproc-per-node, where both are plain numbers."""
        nodes, each = self.launched.get("nnodes", "1"), self.launched.get("nproc-per-node")
        if each is None or not (nodes.isdecimal() and each.isdecimal()):
            return None
        return int(nodes[:9]) * int(each[:9]) or None

    @property
    def machines_not_said(self) -> bool:
        """Return whether the launch is on several nodes and their number is not a plain one, or is that of a file of
        hosts, as of deepspeed without a number."""
        names = {word.lstrip("-").partition("=")[0].replace("_", "-") for word in self.launcher if word[:1] == "-"}
        asked = names & {"nnodes", "num-nodes", "nodes", "np", "N"}
        by_hosts = any(word.rsplit("/", 1)[-1] == "deepspeed" for word in self.launcher)
        return "nnodes" not in self.launched and bool(asked or by_hosts)


def parse_arguments(text: str, source: str) -> Arguments:
    """Return the arguments of one command over one or more lines, with backslashes at their ends, comments and quotes.

    An option given twice, a value without an option and a variable that may stand for options are ``problems`` of it.
    Raises InputError for text that is not a command line.
    """
    if len(text) > _MAX_CHARACTERS:
        raise InputError(
            f"{source}: has more than {_MAX_CHARACTERS:,} characters, which no command line has; give the command alone"
        )
    lines = _COMMAND.sub(lambda found: re.sub(r"\s", _SPACE, found[0]), text.replace("\r\n", "\n"))
    try:
        words = shlex.split(re.sub(r"\\[ \t]*\n", " ", lines), comments=True)
    except ValueError as problem:
        raise InputError(f"{source}: is not a command line: {problem}".replace("No closing", "no closing")) from None
    if not words:
        raise InputError(f"{source}: holds no arguments, such as --num-layers 32")
    return from_words([word.replace(_SPACE, " ") for word in words if word.strip(" ")])  # a comment behind a backslash


def from_words(words: Sequence[str], *, repeated: bool = False) -> Arguments:
    """Return the arguments in the words of one command; ``repeated``: of an option that is given again the last counts,
    as in a script that adds to what it has, and otherwise that is a problem."""
    programs = [place for place, word in enumerate(words) if word.endswith(".py")]
    modules = [place + 1 for place, word in enumerate(words[:-1]) if word in ("-m", "--module")][-1:]
    modules = [place for place in modules if not words[place].startswith(_LAUNCHERS)]
    first = next((place for place, word in enumerate(words) if word.startswith("--")), 0)
    begin = (programs or modules or [first - 1])[0] + 1
    options, problems = _options(words[begin:], repeated=repeated)
    behind = [name for name in _OF_TORCHRUN if name in options]
    launcher = [*words[:begin], *(f"--{name}={' '.join(options.pop(name))}" for name in behind)]
    return Arguments(options, tuple(launcher), launcher_options(launcher), problems)


def with_given(arguments: Arguments, given: Mapping[str, str]) -> Arguments:
    """Return the arguments with the options that the user gives (``--num-layers`` and its value) over their own."""
    own = {name[2:].replace("_", "-"): tuple(value.split()) for name, value in given.items() if name.startswith("--")}
    return replace(arguments, options={**arguments.options, **own}) if own else arguments


def for_a_shell(word: str) -> str:
    """Return the complaint about a value that only a shell knows; empty where the word is plain."""
    if found := _NOT_READ.search(word):
        gives = "prints" if re.fullmatch(r"[\w.-]*", found[1]) else "gives"
        what = f"line {found[2]} takes what {found[1] or 'a command'} {gives}, and nothing is run here"
        return f"{what}; give it with --arg NAME=VALUE, or import the command that bash -x prints, or the run's log"
    shell = _SHELL.search(word)
    what = "is for a shell to fill in, and nothing is run here; write its value (of a script: --arg NAME=VALUE)"
    return f"{shell[0][:40]} {what}" if shell else ""


def _options(words: Sequence[str], *, repeated: bool) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    problems: list[str] = []
    strays: list[str] = []
    name = ""
    for word in words:
        if _OPTION.match(word):
            name, equals, value = word.lstrip("-").partition("=")
            name = name.replace("_", "-")
            if name in found and not repeated:
                problems.append(f"--{name} is given twice; keep one")
            found[name] = (value,) if equals else ()
        elif _OPTIONS.fullmatch(word) and not repeated:
            problems.append(
                f"{word[:40]} may hold options, and nothing is run here; write them out (in the script, put echo "
                f"before the command and paste what that prints)"
            )
        elif not name:
            strays.append(f"{word[:40]!r} is no option; arguments look like --num-layers 32")
        else:
            found[name] = (*found[name], word)
    return found, tuple(dict.fromkeys(strays[:1] + problems))


def launcher_options(words: Sequence[str]) -> dict[str, str]:
    """Return the options of a launcher by name without dashes, each with its value or the word after it."""
    found: dict[str, str] = {}
    for word, after in zip(words, [*words, ""][1:], strict=False):
        if word.startswith("-"):
            name, equals, value = word.lstrip("-").partition("=")
            found[name.replace("_", "-")] = value if equals else after
    return found
