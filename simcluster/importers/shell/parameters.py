"""What stands behind the name in ``${NAME...}``: defaults, parts of the value, and other letters."""

from __future__ import annotations

import fnmatch
import re

from simcluster.importers.shell.arithmetic import whole_number
from simcluster.importers.shell.state import State, Value, is_unset, joined

_SLASH = re.compile(r"(?<!\\)/")


def operated(sign: str, value: Value | None, rest: str, name: str, state: State) -> str:
    """The value by the sign behind the name and the text behind that."""
    unset = is_unset(value) if sign[0] == ":" and len(sign) > 1 else value is None or (is_unset(value) and value != "")
    if sign[-1] in "-=":
        if unset and rest.isdecimal():
            state.defaults[name] = rest
        if unset and sign[-1] == "=" and name not in state.fixed:
            state.put(name, rest)
        return rest if unset else joined(value or "")
    if sign[-1] == "+":
        return "" if unset else rest
    if sign[-1] == "?" and unset:
        state.required[name] = None
    if value is None or sign[-1] == "?":
        return f"${name}" if value is None else joined(value)
    text = joined(value)
    if sign[0] in "#%":
        return _cut(text, rest, sign)
    if sign[0] == "/":
        return _replaced(text, rest, sign)
    if sign == ":":
        begin, _, length = rest.partition(":")
        first, count = whole_number(begin.strip(), state), whole_number(length.strip(), state) if length else None
        if first is None or (length and count is None):
            return f"${name}"
        return text[first:][:count]
    if is_unset(text):
        return text  # a name that nothing sets stays as it is written
    return text.upper() if sign == "^^" else text.lower() if sign == ",," else text


def _replaced(text: str, rest: str, sign: str) -> str:
    """``/old/new``: what is like the pattern, everywhere where there are two slashes, or at the end that it names."""
    old, new = [*(part.replace("\\/", "/") for part in _SLASH.split(rest, maxsplit=1)), ""][:2]
    at_end = old[:1] if old[:1] in ("#", "%") and sign == "/" else ""
    pattern = fnmatch.translate(old.removeprefix(at_end))[: -len(r"\Z")]
    if not old or len(text) > 2_000 or old.count("*") > 1:
        return text
    pattern = rf"\A{pattern}" if at_end == "#" else rf"{pattern}\Z" if at_end == "%" else pattern
    return re.sub(pattern, lambda _: new, text, count=0 if sign == "//" else 1)


def _cut(text: str, pattern: str, sign: str) -> str:
    """Without the shortest or longest part at an end that is like the pattern."""
    lengths = range(min(len(text), 2000) + 1)
    for length in lengths if len(sign) == 1 else reversed(lengths):
        part = text[:length] if sign[0] == "#" else text[len(text) - length :]
        if fnmatch.fnmatchcase(part, pattern):
            return text[length:] if sign[0] == "#" else text[: len(text) - length]
    return text
