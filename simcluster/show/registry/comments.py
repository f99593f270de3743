"""What the comments of a shipped YAML file say: of the file at its head, of an entry above it."""

from __future__ import annotations

import re
from pathlib import Path

_KEY = re.compile(r"([A-Za-z0-9][\w.-]*):\s*(#.*)?$")
_ENDS = re.compile(r"(?<=[A-Za-z0-9)%`\"'])[.?](?=\s+(?:[A-Z]|``)|\s*$)")
_MARKUP = re.compile(r"``|\*")


def head_of(path: Path) -> str:
    """The comment at the head of a file, without its marks."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("#").strip())
    return " ".join(lines)


def sources_above(path: Path) -> dict[str, str]:
    """By entry of a catalogue file, the comment above it; of entries without one, that of the entry before."""
    found: dict[str, str] = {}
    block: list[str] = []
    last = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            block.append(line.lstrip("#").strip())
        elif match := _KEY.match(line):
            last = " ".join(block) or last
            found[match[1]] = last
            block = []
        elif not line.strip() and not found:
            block = []  # the file's own head
    return found


def first_sentence(text: str) -> str:
    """Up to the first full stop that ends one, or the first empty line, on one line.

    >>> first_sentence("ZeRO 2.5 of ``arXiv:1.2``.  More.")
    'ZeRO 2.5 of arXiv:1.2.'
    """
    line = " ".join(text.strip().partition("\n\n")[0].split())
    end = _ENDS.search(line)
    return _MARKUP.sub("", line[: end.end()] if end else line)
