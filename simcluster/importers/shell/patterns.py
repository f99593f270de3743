"""Patterns of a shell, as behind ``==`` between double brackets and in ``case``, where what is quoted is plain text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from simcluster.importers.shell.state import REFERENCE, State, joined
from simcluster.importers.shell.syntax import kind_of, text_of
from simcluster.importers.shell.words import text_at

if TYPE_CHECKING:
    from tree_sitter import Node

_CLASSES = {
    "[:digit:]": "0-9", "[:space:]": r"\s", "[:alpha:]": "a-zA-Z", "[:alnum:]": "a-zA-Z0-9", "[:upper:]": "A-Z",
    "[:lower:]": "a-z",
}  # fmt: skip
_TOKENS = re.compile(r"\\(.)|([@?*+])\(([^()]*)\)|(\*)|(\?)|\[([!^]?)((?:\[:\w+:\]|[^\]])+)\]|(.)", re.DOTALL)
_SETS = re.compile(r"([&|~\[])")
"""What Python may take for operations on sets of characters."""
_MOST_STARS, _LONGEST = 5, 1_000


def matches(text: str, pattern: Sequence[Node], state: State) -> bool | None:
    """Whether a text is like a pattern, of nodes that stand beside each other; None where that cannot be told."""
    parts = [_expression(node, state) for node in pattern]
    whole = "".join(part for part in parts if part is not None)
    if None in parts or len(text) > _LONGEST or whole.count(".*") > _MOST_STARS:
        return None
    try:
        return re.fullmatch(whole, text, re.DOTALL) is not None
    except re.error:
        return None


def _expression(node: Node, state: State) -> str | None:
    """One part as a regular expression; None where a command's output is in it."""
    kind = kind_of(node)
    if kind == "concatenation":
        parts = [_expression(child, state) for child in node.children]
        return None if None in parts else "".join(part for part in parts if part is not None)
    if kind in ("string", "raw_string", "ansi_c_string"):
        text = state.taken_as_unset(text_at(node, state))
        return None if text is None else re.escape(text)
    if kind in ("extglob_pattern", "word", "regex"):
        text = REFERENCE.sub(lambda found: _value(found, state), text_of(node))
    else:
        text = text_at(node, state)
    known = state.taken_as_unset(text)
    return None if known is None else _translated(known)


def _value(found: re.Match[str], state: State) -> str:
    value = state.get(found[1])
    return found[0] if value is None else joined(value)


def _translated(pattern: str) -> str:
    return "".join(map(_token, _TOKENS.finditer(pattern)))


def _token(found: re.Match[str]) -> str:
    plain, sign, inner, star, one, negated, characters, other = found.groups()
    if sign:
        either = "|".join(_translated(part) for part in inner.split("|"))
        return f"(?:{either}){'' if sign == '@' else '?' if sign == '?' else sign}"
    if characters:
        for name, within in _CLASSES.items():
            characters = characters.replace(name, within)
        characters = _SETS.sub(r"\\\1", characters)
        return f"[{'^' if negated else ''}{characters}]"
    return ".*" if star else "." if one else re.escape(plain or other)
