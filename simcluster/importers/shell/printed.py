"""What statements of a shell script print, as $(...) and pipelines take it, as far as that is known."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from simcluster.importers.shell.arithmetic import whole_number
from simcluster.importers.shell.filters import filtered
from simcluster.importers.shell.state import UNKNOWN, State

if TYPE_CHECKING:
    from tree_sitter import Node

_KEEP_NAMES = frozenset(["cat", "tee", "sed", "xargs"])
"""Commands whose output has what only a shell knows as it stands in the input, if it comes through whole."""
_NAMES = re.compile(r"\$\(?\{?\w+|`")
_SUM = re.compile(r"[\d\s()+*/%-]+")


def printed(nodes: Sequence[Node], state: State) -> str | None:
    """What statements print that run in a shell of their own: what they assign ends there.

    None where they do something else than to print what is known; what was told of them is then taken back.
    """
    kept = {name: getattr(state, name) for name in ("prints", "variables", "positional", "stopped", "leaving")}
    told = {name: dict(getattr(state, name)) for name in ("unset", "assumed", "missing", "unknown")}
    leaned, commands = state.leaned, len(state.commands)
    state.prints, state.variables, state.positional = [], dict(state.variables), list(state.positional)
    for node in nodes:
        state.run(node, state)
    texts = state.prints
    for name, value in kept.items():
        setattr(state, name, value)
    del state.commands[commands:]
    if None not in texts:
        return "".join(text for text in texts if text is not None)
    state.leaned = leaned
    for name, value in told.items():
        setattr(state, name, value)
    return None


def passed_on(commands: Sequence[Sequence[str]], text: str | None, state: State) -> str | None:
    """What comes out of commands that each are given what the one before prints."""
    for words in commands:
        if text is None or not words:
            return None
        text = _passed(words, text, state)
    return text


def _passed(words: Sequence[str], text: str, state: State) -> str | None:
    if words[0] == "bc":
        number = whole_number(text.strip(), state) if _SUM.fullmatch(text) else None
        return None if number is None else f"{number}\n"
    result = filtered(words, text)
    if result is None or not UNKNOWN.search(text):
        return result
    whole = words[0] in _KEEP_NAMES and _NAMES.findall(result) == _NAMES.findall(text)
    return result if whole else None
