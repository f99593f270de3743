"""Parser that splits a launch command into the launcher's part and the training program's options.

Nothing in the text is run and no variable is looked up. A value may contain a variable, as a path does; it is refused
where its value is needed. A variable that may hold options is a problem, since those options would be lost. For whole
scripts see ``launch_scripts``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from simcluster.base.errors import InputError

_MAX_CHARACTERS = 200_000
_SHELL_EXPRESSION = re.compile(r"\$\{[^}]*\}?|\$\(\([^)]*\)*|\$\([^)]*\)?|\$\w+|`[^`]*`?")
_UNREAD_PLACEHOLDER = re.compile(r"\$\(([^\s()]*)\.\.\.:(\d+)\)")
"""Placeholder in a script's words for a value that only a shell knows."""
_COMMAND_SUBSTITUTION = re.compile(r"\$\([^)]*\)?|`[^`]*`?")
_OPTIONS_VARIABLE = re.compile(
    r"\$\{?\w*(ARGS|ARGUMENTS|OPTIONS|OPTS|FLAGS|CONFIGS)\}?|\$\{\w+\[[@*]\]\}|\$[@*]", re.IGNORECASE
)
_SPACE = "\x1f"  # replaces blanks inside a command substitution, which is one word
_LAUNCHER_MODULES = ("torch.distributed", "torchrun", "deepspeed", "accelerate")
_OPTION = re.compile(r"--?[A-Za-z]")
_TORCHRUN_OPTIONS = ("nnodes", "nproc-per-node", "node-rank", "master-addr", "master-port")
"""Options of torchrun that no Megatron-LM program has; they keep their meaning after the program's name, too."""


CONFIG_JSON_ADVICE = "create the scenario with simcluster import hugging-face and the config.json of its model"
"""Advice for an unsupported command that does not give the sizes of its model."""


@dataclass(frozen=True)
class LaunchArguments:
    """One training command: the program's options by name, and the launcher's words (such as torchrun) before them.

    ``options`` are by name without dashes, in the order given. ``problems`` are complaints about single words, to be
    reported with all others; ``assumed`` are assumptions made while reading a script, and ``unknown`` what is unknown
    about files that it names. ``disabled_settings`` are settings of a file that are off.
    """

    options: dict[str, tuple[str, ...]]
    launcher: tuple[str, ...] = ()
    launched: dict[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    disabled_settings: tuple[str, ...] = ()

    def option_text(self, *names: str) -> str:
        """Return the value of the first present option among ``names`` as one string; "" if none is present."""
        return next((" ".join(words) for name in names if (words := self.options.get(name))), "")

    @property
    def process_count(self) -> int | None:
        """Number of processes that torchrun starts (nnodes x nproc-per-node), or None if the number is unknown."""
        nodes, each = self.launched.get("nnodes", "1"), self.launched.get("nproc-per-node")
        if each is None or not (nodes.isdecimal() and each.isdecimal()):
            return None
        return int(nodes[:9]) * int(each[:9]) or None

    @property
    def lacks_node_count(self) -> bool:
        """Whether the launch uses several nodes or a hostfile, but does not state the number of nodes."""
        names = {word.lstrip("-").partition("=")[0].replace("_", "-") for word in self.launcher if word[:1] == "-"}
        asked = names & {"nnodes", "num-nodes", "nodes", "np", "N"}
        by_hosts = any(word.rsplit("/", 1)[-1] == "deepspeed" for word in self.launcher)
        return "nnodes" not in self.launched and bool(asked or by_hosts)


def parse_launch_command(text: str, source: str) -> LaunchArguments:
    """Parse one launch command, which may span several lines and contain comments and quotes.

    A repeated option, a value without an option and a variable that may hold options are ``problems`` of the result.
    Raises InputError for text that is not a command line.
    """
    if len(text) > _MAX_CHARACTERS:
        raise InputError(f"{source}: longer than {_MAX_CHARACTERS:,} characters, the limit; give only the command")
    lines = _COMMAND_SUBSTITUTION.sub(lambda found: re.sub(r"\s", _SPACE, found[0]), text.replace("\r\n", "\n"))
    try:
        words = shlex.split(re.sub(r"\\[ \t]*\n", " ", lines), comments=True)
    except ValueError as problem:
        raise InputError(f"{source}: is not a command line: {problem}".replace("No closing", "no closing")) from None
    if not words:
        raise InputError(f"{source}: has no arguments, such as --num-layers 32")
    return parse_command_words([word.replace(_SPACE, " ") for word in words if word.strip(" ")])  # a comment after \


def parse_command_words(words: Sequence[str], *, repeated: bool = False) -> LaunchArguments:
    """Split the words of one launch command into the program's options and the launcher's words.

    ``repeated``: the last value of a repeated option counts, as in a script that appends; otherwise repetition is a
    problem.
    """
    programs = [place for place, word in enumerate(words) if word.endswith(".py")]
    modules = [place + 1 for place, word in enumerate(words[:-1]) if word in ("-m", "--module")][-1:]
    modules = [place for place in modules if not words[place].startswith(_LAUNCHER_MODULES)]
    first = next((place for place, word in enumerate(words) if word.startswith("--")), 0)
    begin = (programs or modules or [first - 1])[0] + 1
    options, problems = _parse_program_options(words[begin:], repeated=repeated)
    behind = [name for name in _TORCHRUN_OPTIONS if name in options]
    launcher = [*words[:begin], *(f"--{name}={' '.join(options.pop(name))}" for name in behind)]
    return LaunchArguments(options, tuple(launcher), parse_launcher_options(launcher), problems)


def override_options(arguments: LaunchArguments, changes: Mapping[str, str]) -> LaunchArguments:
    """Replace options of a launch command by options that the user sets, such as ``--num-layers``."""
    own = {name[2:].replace("_", "-"): tuple(value.split()) for name, value in changes.items() if name.startswith("--")}
    return replace(arguments, options={**arguments.options, **own}) if own else arguments


def explain_unexpanded_value(word: str) -> str:
    """Return an error text for a value that only a shell can expand; "" for a plain word."""
    if found := _UNREAD_PLACEHOLDER.search(word):
        gives = "output" if re.fullmatch(r"[\w.-]*", found[1]) else "value"
        what = f"line {found[2]} uses the {gives} of {found[1] or 'a command'}, and the script is not run"
        return f"{what}; give it with --arg NAME=VALUE, or import the command that bash -x prints, or the run's log"
    shell = _SHELL_EXPRESSION.search(word)
    what = "is filled in by a shell, and no shell is run; write its value (in a script: --arg NAME=VALUE)"
    return f"{shell[0][:40]} {what}" if shell else ""


def _parse_program_options(words: Sequence[str], repeated: bool) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
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
        elif _OPTIONS_VARIABLE.fullmatch(word) and not repeated:
            problems.append(
                f"{word[:40]} may contain options, and no shell is run to expand it; write them out (in the script, "
                f"put echo before the command and paste its output)"
            )
        elif not name:
            strays.append(f"{word[:40]!r} is not an option; arguments look like --num-layers 32")
        else:
            found[name] = (*found[name], word)
    return found, tuple(dict.fromkeys(strays[:1] + problems))


def parse_launcher_options(words: Sequence[str]) -> dict[str, str]:
    """Return a launcher's options as a mapping of names (without dashes) to values."""
    found: dict[str, str] = {}
    for word, after in zip(words, [*words, ""][1:], strict=False):
        if word.startswith("-"):
            name, equals, value = word.lstrip("-").partition("=")
            found[name.replace("_", "-")] = value if equals else after
    return found
