"""Commands of a script that start a program: kept with what stands around them, or read on where a shell is started."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from simcluster.base.errors import InputError
from simcluster.importers.shell.state import PAIR, State, is_unset

Read = Callable[[str, State], State]
_SHELLS = frozenset(["bash", "sh", "zsh", "ksh"])
_COMMANDS = ("llamafactory-cli", "llamafactory.cli")
"""That may have all their options in a file."""
_MOST_DEPTH = 8
_LISTS = re.compile(r"--(?:export|env)=(.*)", re.DOTALL)
"""Of sbatch and srun (``--export=ALL,TP=4``), docker and singularity (``--env=TP=4``)."""
_CLOCKS = re.compile(r"-(?:lgc|lmc|ac|pl|-lock-\w+-clocks|-applications-clocks|-power-limit)(?:=.*)?")


def read_text(text: str, state: State, read: Read) -> None:
    """Reads a script that stands in the script."""
    if state.depth >= _MOST_DEPTH:
        raise InputError(
            f"{state.source}: scripts that start scripts more than {_MOST_DEPTH} deep; give the command alone"
        )
    state.depth += 1
    stopped = state.stopped
    read(text, state)
    state.depth -= 1
    state.stopped, state.leaving = stopped, ""


def read_command(words: list[str], state: State, read: Read) -> None:
    """Keeps a command that runs a Python program; goes into one that starts a shell, or another script."""
    for place, word in enumerate(words):
        if PAIR.fullmatch(word) or _LISTS.fullmatch(word):
            continue
        base, before, behind = word.rsplit("/", 1)[-1], words[:place], words[place + 1 :]
        if base in _SHELLS and behind:
            _go_into(before, state, partial(_shell, behind, state, read))
            return
        if word.endswith(".py"):
            _hand_over(before, state)
            break
        if place and re.search(r"\.py\s", word):  # of ssh, pdsh, docker
            _go_into(before, state, partial(read_text, word, state, read))
            return
        if base.endswith((".sh", ".slurm", ".sbatch")):
            text = state.text_named(word)
            if text is None and _hands_on(behind):
                break
            if text is not None:
                _go_into(before, state, partial(_read_with, behind, text, state, read))
            return
    bases = [word.rsplit("/", 1)[-1] for word in words]
    if "nvidia-smi" in bases and any(map(_CLOCKS.fullmatch, words)):
        state.assumed["the GPUs' clocks and power are the cluster's, and not what nvidia-smi sets"] = None
    if any(word.endswith(".py") or word.startswith("--") or word in _COMMANDS for word in words):
        state.commands.append((words, list(state.around)))


def _go_into(words: list[str], state: State, reads: Callable[[], object]) -> None:
    """Reads what stands behind these words of a command, with the variables that they set and with them around it."""
    around = len(state.around)
    _hand_over(words, state)
    state.around += words
    reads()
    del state.around[around:]


def _read_with(arguments: list[str], text: str, state: State, read: Read) -> None:
    """Reads a script with its arguments."""
    kept, state.positional = state.positional, arguments
    read_text(text, state, read)
    state.positional = kept


def _hand_over(words: list[str], state: State) -> None:
    """Sets the variables that a command gives to what it starts: ``env TP=4``, ``docker run -e TP=4``, ``sbatch
    --export=ALL,TP=4``, ``qsub -v TP=4,PP=2``."""
    for before, word in zip(["", *words], words, strict=False):
        listed = _LISTS.fullmatch(word)
        several = listed or before == "-v"
        parts = re.split(r",(?=[A-Za-z_]\w*=)", listed[1] if listed else word) if several else [word]
        for pair in filter(None, map(PAIR.fullmatch, (part.removeprefix("ALL,") for part in parts))):
            if pair[1] not in state.fixed and not (pair[2] and is_unset(pair[2])):
                state.put(pair[1], pair[2])


def _hands_on(words: list[str]) -> bool:
    """Whether a script that is not there is given the program to run, with its options."""
    program = next((place for place, word in enumerate(words) if word.endswith(".py")), None)
    return program is not None and any(word.startswith("--") for word in words[program:])


def _shell(words: list[str], state: State, read: Read) -> None:
    command = False
    for place, word in enumerate(words):
        if word.startswith(("-", "+")) and not word.startswith("--"):
            command = command or "c" in word
        elif not word.startswith("--"):
            text = word if command else state.text_named(word)
            if text is None and _hands_on(words[place + 1 :]):
                state.commands.append((words, list(state.around)))
            if text is not None:
                _read_with(words[place + 1 :], text, state, read)
            return
