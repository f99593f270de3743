"""Commands of a script that start a program, a shell or another script, and files that it writes."""

from __future__ import annotations

import re
from collections.abc import Callable

from simcluster.importers.shell.state import State, is_unset
from simcluster.importers.shell.syntax import Statement
from simcluster.importers.shell.words import document_text, text_of, words_of

Read = Callable[[str, State], None]
_SHELLS = frozenset(["bash", "sh", "zsh", "ksh"])
_PROGRAMS = ("llamafactory-cli", "llamafactory.cli")
"""That may have all their options in a file."""
_CLOCKS = re.compile(r"-(?:lgc|lmc|ac|pl|-lock-\w+-clocks|-applications-clocks|-power-limit)(?:=.*)?")
_PAIR = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_LISTS = re.compile(r"--(?:export|env)=(.*)", re.DOTALL)
"""Of sbatch and srun (``--export=ALL,TP=4``), docker and singularity (``--env=TP=4``)."""
_EDIT = re.compile(r"s([/|#,:@])([\w <>.-]*)\1((?:(?!\1|&|\\).)*)\1g?")
"""Of sed: one plain word for another."""


def start(words: list[str], state: State, read: Read) -> None:
    """Keep a command that runs a program; read what a shell, or another script, is given to run."""
    for place, word in enumerate(words):
        if _PAIR.fullmatch(word) or _LISTS.fullmatch(word):
            continue
        base, before, behind = word.rsplit("/", 1)[-1], words[:place], words[place + 1 :]
        text, arguments = None, list(state.positional)
        if base in _SHELLS and behind:
            text, arguments = _of_shell(behind, state)
        elif word.endswith(".py"):
            _pass_variables(before, state)
            break
        elif place and re.search(r"\.py\s", word):  # of ssh, pdsh, docker
            text = word
        elif base.endswith((".sh", ".slurm", ".sbatch")):
            text, arguments = state.text_named(word), behind
        else:
            continue
        if text is not None:
            _read_inside(text, before, arguments, state, read)
            return
        if not _passes_on(behind):
            return
        break  # a script that is not there is given the program to run, with its options
    if any(word.rsplit("/", 1)[-1] == "nvidia-smi" for word in words) and any(map(_CLOCKS.fullmatch, words)):
        state.assumed["the GPUs' clocks and power are the cluster's, and not what nvidia-smi sets"] = None
    if any(word.endswith(".py") or word.startswith("--") or word in _PROGRAMS for word in words):
        state.commands.append((words, list(state.around)))


def _of_shell(words: list[str], state: State) -> tuple[str | None, list[str]]:
    """Return the text that a shell is given to read, and its arguments."""
    flags = [place for place, word in enumerate(words) if word.startswith(("-", "+"))]
    place = next((place for place in range(len(words)) if place not in flags), len(words) - 1)
    command = any("c" in words[flag] for flag in flags if flag < place and not words[flag].startswith("--"))
    return words[place] if command else state.text_named(words[place]), words[place + 1 :]


def _read_inside(text: str, before: list[str], arguments: list[str], state: State, read: Read) -> None:
    """Read a script with its arguments, and with the words and variables of the command around it."""
    around, positional = len(state.around), state.positional
    _pass_variables(before, state)
    state.around += before
    state.positional = arguments
    read(text, state)
    state.positional = positional
    del state.around[around:]


def _passes_on(words: list[str]) -> bool:
    program = next((place for place, word in enumerate(words) if word.endswith(".py")), None)
    return program is not None and any(word.startswith("--") for word in words[program:])


def _pass_variables(words: list[str], state: State) -> None:
    """Set the variables that a command passes to what it starts: ``env TP=4``, ``docker run -e TP=4``, ``sbatch
    --export=ALL,TP=4``, ``qsub -v TP=4,PP=2``."""
    for before, word in zip(["", *words], words, strict=False):
        listed = _LISTS.fullmatch(word)
        several = listed or before == "-v"
        parts = re.split(r",(?=[A-Za-z_]\w*=)", listed[1] if listed else word) if several else [word]
        for pair in filter(None, map(_PAIR.fullmatch, (part.removeprefix("ALL,") for part in parts))):
            if not (pair[2] and is_unset(pair[2])):
                state.put(pair[1], pair[2])


def files_written(commands: list[Statement], state: State, read: Read) -> bool:
    """Keep a text that a pipeline writes to a file, or read one that it gives to a shell; return whether it does."""
    redirects = [each for command in commands for each in command.redirects]
    if (len(commands) == 1 and not redirects) or any(command.kind != "command" for command in commands):
        return False
    argv = [[word for raw in command.words for word in words_of(raw, state)] for command in commands]
    first, last = argv[0], argv[-1]
    target = next((word for sign, word in redirects if sign.lstrip("&1") in (">", ">>", ">|")), None)
    file = text_of(target, state) if target else first[-1] if first[:1] == ["tee"] else ""
    text = next((body for sign, body in redirects if sign in ("<<", "<<'")), None)
    if text is not None and ("<<", text) in redirects:
        text = document_text(text, state)
    elif text is None and first[:1] in (["echo"], ["printf"]):
        text = " ".join(word for word in first[1:] if not re.fullmatch(r"-[neE]+|%s(\\n)?", word)) + "\n"
    elif text is None and first[:1] == ["sed"]:
        text = _edited(argv, state)
    if text is not None and first[:1] == ["read"]:  # read -r -d '' NAME <<EOF
        state.put(first[-1], text)
        return True
    if text is not None and any(re.fullmatch(r"(.*/)?(bash|sh|sbatch)", word) for word in last):
        state.around += last
        read(text, state)
        return True
    if text is not None and file:
        added = any(sign == ">>" for sign, _ in redirects)
        state.files[file] = (state.files.get(file, "") if added else "") + text
    return text is not None and file != ""


def _edited(commands: list[list[str]], state: State) -> str | None:
    """Return what ``sed s/WORD/TEXT/ FILE | sed s/WORD/TEXT/ | ...`` prints; None for other edits."""
    edits = [_EDIT.fullmatch(words[1]) if len(words) > 1 and words[0] == "sed" else None for words in commands]
    text = state.text_named(commands[0][2], wanted=False) if len(commands[0]) == 3 else None
    for edit in edits:
        text = text.replace(edit[2], edit[3]) if text is not None and edit else None
    return text
