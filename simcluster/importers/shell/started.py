"""Commands of a script that start a program: kept with what stands around them, or read on where a shell is started."""

from __future__ import annotations

import re
from collections.abc import Callable

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
    around = len(state.around)
    for place, word in enumerate(words):
        if PAIR.fullmatch(word) or _LISTS.fullmatch(word):
            continue
        base = word.rsplit("/", 1)[-1]
        if base in _SHELLS and place + 1 < len(words):
            _hand_over(words[:place], state)
            state.around += words[:place]
            _shell(words[place + 1 :], state, read)
            del state.around[around:]
            return
        if word.endswith(".py"):
            _hand_over(words[:place], state)
            break
        if place and re.search(r"\.py\s", word):  # of ssh, pdsh, docker
            _hand_over(words[:place], state)
            state.around += words[:place]
            read_text(word, state, read)
            del state.around[around:]
            return
        if base.endswith((".sh", ".slurm", ".sbatch")):
            text = state.text_named(word)
            if text is None and _hands_on(words[place + 1 :]):
                break
            if text is not None:
                _hand_over(words[:place], state)
                kept, state.positional = state.positional, words[place + 1 :]
                state.around += words[:place]
                read_text(text, state, read)
                state.positional = kept
                del state.around[around:]
            return
    bases = [word.rsplit("/", 1)[-1] for word in words]
    if "nvidia-smi" in bases and any(map(_CLOCKS.fullmatch, words)):
        state.assumed["the GPUs' clocks and power are the cluster's, and not what nvidia-smi sets"] = None
    if any(word.endswith(".py") or word.startswith("--") or word in _COMMANDS for word in words):
        state.commands.append((words, list(state.around)))


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
                kept, state.positional = state.positional, words[place + 1 :]
                read_text(text, state, read)
                state.positional = kept
            return
