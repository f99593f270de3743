"""Detection of shell commands that start a program or a script, and of files that a script writes."""

from __future__ import annotations

import re
from collections.abc import Callable

from simcluster.importers.shell.script_state import ScriptState, is_unset_shell_value
from simcluster.importers.shell.shell_parser import ShellStatement
from simcluster.importers.shell.word_expansion import expand_here_document, expand_word_to_text, expand_words

ScriptReader = Callable[[str, ScriptState], None]
_SHELLS = frozenset(["bash", "sh", "zsh", "ksh"])
_FILE_PROGRAMS = ("llamafactory-cli", "llamafactory.cli")
"""Programs whose options may all be in a file."""
_PAIR = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE_OPTION = re.compile(r"--(?:export|env)=(.*)", re.DOTALL)
"""Variable options of sbatch and srun (``--export=ALL,TP=4``), docker and singularity (``--env=TP=4``)."""


def record_started_command(words: list[str], state: ScriptState, read: ScriptReader) -> None:
    """Record a command that starts a program; if the command starts a script, read that script."""
    for place, word in enumerate(words):
        base, before, behind = word.rsplit("/", 1)[-1], words[:place], words[place + 1 :]
        text, arguments = None, list(state.positional_arguments)
        if _PAIR.fullmatch(word) or _VARIABLE_OPTION.fullmatch(word):
            continue
        if word.endswith(".py"):
            _set_passed_variables(before, state)
            break
        if base in _SHELLS and behind:
            flags = [place for place, word in enumerate(behind) if word.startswith(("-", "+"))]
            inner = next((place for place in range(len(behind)) if place not in flags), len(behind) - 1)
            given = any("c" in behind[flag] and behind[flag][:2] != "--" for flag in flags if flag < inner)
            text, arguments = behind[inner] if given else state.find_file_text(behind[inner]), behind[inner + 1 :]
        elif base.endswith((".sh", ".slurm", ".sbatch")):
            text, arguments = state.find_file_text(word), behind
        else:
            continue
        if text is not None:
            _read_started_script(text, before, arguments, state, read)
            return
        program = next((place for place, word in enumerate(behind) if word.endswith(".py")), len(behind))
        if not any(word.startswith("--") for word in behind[program:]):
            return
        break  # a missing script is given the program to run with its options
    if any(word.endswith(".py") or word.startswith("--") or word in _FILE_PROGRAMS for word in words):
        state.commands.append((words, list(state.enclosing_words)))


def _read_started_script(text: str, before: list[str], args: list[str], state: ScriptState, read: ScriptReader) -> None:
    """Read a script that a command starts, with the arguments and variables passed by the command."""
    around, positional = len(state.enclosing_words), state.positional_arguments
    _set_passed_variables(before, state)
    state.enclosing_words += before
    state.positional_arguments = args
    read(text, state)
    state.positional_arguments = positional
    del state.enclosing_words[around:]


def _set_passed_variables(words: list[str], state: ScriptState) -> None:
    """Set the variables that a command passes to a program (``env TP=4``, ``sbatch --export=ALL,TP=4``)."""
    for before, word in zip(["", *words], words, strict=False):
        listed = _VARIABLE_OPTION.fullmatch(word)
        several = listed or before == "-v"
        parts = re.split(r",(?=[A-Za-z_]\w*=)", listed[1] if listed else word) if several else [word]
        for pair in filter(None, map(_PAIR.fullmatch, (part.removeprefix("ALL,") for part in parts))):
            if not (pair[2] and is_unset_shell_value(pair[2])):
                state.assign_variable(pair[1], pair[2])


def read_here_document(commands: list[ShellStatement], state: ScriptState, read: ScriptReader) -> bool:
    """Store a here-document that goes to a file, or read one that goes to a shell; return whether there is one."""
    redirects = [each for command in commands for each in command.redirects]
    body = next(((sign, text) for sign, text in redirects if sign in ("<<", "<<'")), None)
    if body is None or any(command.kind != "command" for command in commands):
        return False
    text = expand_here_document(body[1], state) if body[0] == "<<" else body[1]
    first, last = ([word for raw in commands[end].words for word in expand_words(raw, state)] for end in (0, -1))
    target = next((word for sign, word in redirects if sign.lstrip("&1") in (">", ">>", ">|")), None)
    file = expand_word_to_text(target, state) if target else first[-1] if first[:1] == ["tee"] else ""
    if first[:1] == ["read"]:  # read -r -d '' NAME <<EOF
        state.assign_variable(first[-1], text)
    elif any(re.fullmatch(r"(.*/)?(bash|sh|sbatch)", word) for word in last):
        state.enclosing_words += last
        read(text, state)
    elif file:
        added = any(sign == ">>" for sign, _ in redirects)
        state.files[file] = (state.files.get(file, "") if added else "") + text
    return bool(file) or first[:1] == ["read"] or any(re.fullmatch(r"(.*/)?(bash|sh|sbatch)", word) for word in last)
