"""Tests of a launch script, decided as far as they can be without running anything.

Files are taken to exist; what the script never sets is taken as empty.
"""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable

from simcluster.importers.shell.state import State
from simcluster.importers.shell.words import pattern_of, text_of, words_of

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt, "-ge": operator.ge, "-lt": operator.lt,
    "-le": operator.le,
}  # fmt: skip
_OPENS, _CLOSES = ("(", "\\("), (")", "\\)")
_OF_FILES = frozenset(["-e", "-f", "-d", "-s", "-r", "-w", "-x", "-L", "-h"])
_SIGNS = frozenset(["=", "==", "!=", "<", ">", "=~", *_NUMBERS])
_WHOLE = re.compile(r"\s*-?\d{1,18}\s*")
_LONGEST = 1_000


def is_met(words: list[str], state: State, *, double: bool) -> bool | None:
    """Return whether a test of words as written is met, between double brackets or single ones; None if unknown."""
    if double:  # in which a bracket may touch a word
        words = [part for word in words for part in _apart(word)]
    for signs, decides in ((("||", "-o"), True), (("&&", "-a"), False)):
        place = _first(words, signs)
        if place is not None:
            left = is_met(words[:place], state, double=double)
            right = decides if left is decides else is_met(words[place + 1 :], state, double=double)
            return right if left is not None or right is decides else None
    if words[:1] == ["!"]:
        found = is_met(words[1:], state, double=double)
        return None if found is None else not found
    if words and words[0] in _OPENS and words[-1] in _CLOSES:
        return is_met(words[1:-1], state, double=double)
    if len(words) > 1 and re.fullmatch("-[a-zA-Z]", words[0]) and words[1] not in _SIGNS:
        return _unary(words[0], " ".join(each for word in words[1:] for each in words_of(word, state)), state)
    plain = (
        words if len(words) > 2 and words[1] in _SIGNS else [each for word in words for each in words_of(word, state)]
    )
    if len(plain) > 2 and plain[1] in _SIGNS:
        return _binary(plain[0], plain[1], plain[2], state, double=double)
    text = state.taken_as_unset(" ".join(plain))
    return None if text is None else bool(text.strip())


def _apart(word: str) -> list[str]:
    begin = len(word) > 1 and word.startswith("(") and word.count("(") > word.count(")")
    end = len(word) > 1 and word.endswith(")") and word.count(")") > word.count("(") - begin
    return [*["("] * begin, word[begin : len(word) - end], *[")"] * end]


def _first(words: list[str], signs: tuple[str, ...]) -> int | None:
    """Return the place of the first of these signs that is in no brackets."""
    depth = 0
    for place, word in enumerate(words):
        depth += (word in _OPENS) - (word in _CLOSES)
        if depth == 0 and word in signs:
            return place
    return None


def _unary(sign: str, operand: str, state: State) -> bool | None:
    if sign in _OF_FILES:
        state.leaned += 1
        return bool(operand)
    if sign == "-v":
        return state.get(operand) is not None
    text = state.taken_as_unset(operand)
    if text is None:
        return sign == "-n"  # a command's output is taken to exist
    return bool(text) == (sign == "-n")


def _binary(left: str, sign: str, right: str, state: State, *, double: bool) -> bool | None:
    equal = sign in ("=", "==", "!=")
    one = state.taken_as_unset(text_of(left, state))
    other = state.taken_as_unset(pattern_of(right, state) if double and equal else text_of(right, state))
    if one is None or other is None:
        return None
    if sign in _NUMBERS:  # a shell complains of what is no number, and continues with what follows else
        numbers = [int(text) for text in (one, other) if _WHOLE.fullmatch(text)]
        return len(numbers) == 2 and _NUMBERS[sign](numbers[0], numbers[1])
    if equal:
        same = fnmatch.fnmatchcase(one[:_LONGEST], other[:_LONGEST]) if double else one == other
        return same == (sign != "!=")
    if sign in ("<", ">"):
        return one < other if sign == "<" else one > other
    if len(other) > 100 or re.search(r"[*+{].*[*+{]", other):  # which may take long to match
        return None
    try:
        like = re.search(other, one[:_LONGEST])
    except re.error:
        return None
    if like:
        state.put("BASH_REMATCH", [like[0], *(part or "" for part in like.groups())])
    return like is not None
