"""A launch command as a person pastes it: options with their values, and what starts the program before them.

Nothing in the text is run and no variable is looked up: what a shell would put in has to be there.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

from simcluster.errors import InputError

_MAX_CHARACTERS = 200_000
_SHELL = re.compile(r"\$\{[^}]*\}?|\$\([^)]*\)?|\$\w+|`[^`]*`?")
_OPTION = re.compile(r"--?[A-Za-z]")


@dataclass(frozen=True)
class Arguments:
    """``options`` by name without dashes, in the order given; ``launcher`` what stands before the program's own."""

    options: dict[str, tuple[str, ...]]
    launcher: tuple[str, ...] = ()
    launched: dict[str, str] = field(default_factory=dict)

    @property
    def gpus(self) -> int | None:
        """Processes that torchrun is to start: --nnodes x --nproc-per-node, where both are plain numbers."""
        nodes, each = self.launched.get("nnodes", "1"), self.launched.get("nproc-per-node")
        if each is None or not (nodes.isdecimal() and each.isdecimal()):
            return None
        return int(nodes[:9]) * int(each[:9]) or None


def parse_arguments(text: str, source: str) -> Arguments:
    """The arguments of one command over one or more lines, with backslashes at their ends, comments and quotes.

    Raises InputError for shell variables, an option given twice, a value without an option and text that is not a
    command line.
    """
    if len(text) > _MAX_CHARACTERS:
        raise InputError(f"{source}: has more than {_MAX_CHARACTERS:,} characters, which no command line has")
    shell = _SHELL.search(text)
    if shell:
        line = text[: shell.start()].count("\n") + 1
        raise InputError(
            f"{source}:{line}: {shell[0][:40]} is for a shell to fill in, and nothing is run here; write its value "
            "(in the script, put echo before the command and paste what that prints)"
        )
    lines = text.replace("\r\n", "\n")
    try:
        words = shlex.split(re.sub(r"\\[ \t]*\n", " ", lines), comments=True)
    except ValueError as problem:
        raise InputError(f"{source}: is not a command line: {problem}".replace("No closing", "no closing")) from None
    if not words:
        raise InputError(f"{source}: holds no arguments, such as --num-layers 32")
    programs = [place for place, word in enumerate(words) if word.endswith(".py")]
    begin = programs[0] + 1 if programs else next((n for n, word in enumerate(words) if word.startswith("--")), 0)
    launcher = words[:begin]
    return Arguments(_options(words[begin:], source), tuple(launcher), _launched(launcher))


def _options(words: list[str], source: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    name = ""
    for word in words:
        if _OPTION.match(word):
            name, equals, value = word.lstrip("-").partition("=")
            name = name.replace("_", "-")
            if name in found:
                raise InputError(f"{source}: --{name} is given twice; keep one")
            found[name] = (value,) if equals else ()
        elif not name:
            raise InputError(f"{source}: {word[:40]!r} is no option; arguments look like --num-layers 32")
        else:
            found[name] = (*found[name], word)
    return found


def _launched(words: list[str]) -> dict[str, str]:
    """Options of the launcher, with the word behind each."""
    found: dict[str, str] = {}
    for word, after in zip(words, [*words, ""][1:], strict=True):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found[name.replace("_", "-")] = value if equals else after
    return found
