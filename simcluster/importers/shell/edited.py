"""A file that a script makes of another one with ``sed``: of words in it that stand for others."""

from __future__ import annotations

import re
from collections.abc import Sequence

from simcluster.importers.shell.state import State

_SUBSTITUTION = re.compile(r"s([/|#,:])([\w{}@% .-]+)\1(.*)\1g?", re.DOTALL)


def edited_text(commands: Sequence[Sequence[str]], state: State) -> str | None:
    """What ``sed s/WORD/TEXT/ FILE | sed s/WORD/TEXT/ | ...`` prints; None of other commands, or without the file."""
    found: str | None = None
    for place, words in enumerate(commands):
        names = [word for word in words[1:] if not word.startswith("-") and not _SUBSTITUTION.fullmatch(word)]
        changes = [change for word in words[1:] if (change := _SUBSTITUTION.fullmatch(word))]
        if words[:1] != ["sed"] or not changes or len(names) != (place == 0) or {"-i", "-n"} & {*words}:
            return None
        found = state.text_named(names[0], wanted=False) if place == 0 else found
        if found is None:
            return None
        for change in changes:
            found = found.replace(change[2], change[3])
    return found
