"""Tests of a launch script, decided as far as they can be without running anything.

Files are taken to exist; what the script never sets is taken as empty.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable

from simcluster.importers.shell.state import State
from simcluster.importers.shell.words import pattern_of, text_of, words_of

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda one, other: one == other,
    "-ne": lambda one, other: one != other,
    "-gt": lambda one, other: one > other,
    "-ge": lambda one, other: one >= other,
    "-lt": lambda one, other: one < other,
    "-le": lambda one, other: one <= other,
}
_OF_FILES = frozenset(["-e", "-f", "-d", "-s", "-r", "-w", "-x", "-L", "-h"])
_SIGNS = frozenset(["=", "==", "!=", "<", ">", "=~", *_NUMBERS])
_WHOLE = re.compile(r"\s*-?\d{1,18}\s*")
_LONGEST = 1_000


def is_met(words: list[str], state: State, *, double: bool) -> bool | None:
    """Return whether a test of words as written is met, between double brackets or single ones; None if unknown."""
    if double:  # in which a bracket may touch a word
        words = [part for word in words for part in _apart(word)]
    return _Test(words, state, double=double).any()


def _apart(word: str) -> list[str]:
    begin = len(word) > 1 and word.startswith("(") and word.count("(") > word.count(")")
    end = len(word) > 1 and word.endswith(")") and word.count(")") > word.count("(") - begin
    return [*["("] * begin, word[begin : len(word) - end], *[")"] * end]


class _Test:
    """The words of a test and a place in them."""

    def __init__(self, words: list[str], state: State, *, double: bool) -> None:
        self._words, self._state, self._double, self._place = words, state, double, 0

    def _at(self, *words: str) -> bool:
        return self._words[self._place : self._place + 1] in [[word] for word in words]

    def any(self, *, skip: bool = False) -> bool | None:
        """Return the value of tests with ``||`` between them; ``skip``: of none, which only passes over them."""
        found = self._all(skip=skip)
        while self._at("||", "-o"):
            self._place += 1
            other = self._all(skip=skip or found is True)
            found = True if True in (found, other) else None if None in (found, other) else False
        return found

    def _all(self, *, skip: bool) -> bool | None:
        found = self._one(skip=skip)
        while self._at("&&", "-a"):
            self._place += 1
            other = self._one(skip=skip or found is False)
            found = False if False in (found, other) else None if None in (found, other) else True
        return found

    def _one(self, *, skip: bool) -> bool | None:
        if self._at("!"):
            self._place += 1
            found = self._one(skip=skip)
            return None if found is None else not found
        if self._at("(", "\\("):
            self._place += 1
            found = self.any(skip=skip)
            self._place += 1
            return found
        begin = self._place
        while self._place < len(self._words) and not self._at("&&", "||", "-a", "-o", ")", "\\)"):
            self._place += 1
        words = self._words[begin : self._place]
        return False if skip or not words else self._comparison(words)

    def _comparison(self, words: list[str]) -> bool | None:
        if len(words) >= 3 and words[1] in _SIGNS:
            return self._binary(words[0], words[1], words[2])
        if len(words) > 1 and re.fullmatch("-[a-zA-Z]", words[0]):
            return self._unary(words[0], " ".join(each for word in words[1:] for each in words_of(word, self._state)))
        plain = [each for word in words for each in words_of(word, self._state)]
        if len(plain) >= 3 and plain[1] in _SIGNS:
            return self._binary(plain[0], plain[1], plain[2])
        text = self._state.taken_as_unset(" ".join(plain))
        return None if text is None else bool(text.strip())

    def _unary(self, sign: str, operand: str) -> bool | None:
        if sign in _OF_FILES:
            self._state.leaned += 1
            return bool(operand)
        if sign == "-v":
            return self._state.get(operand) is not None
        text = self._state.taken_as_unset(operand)
        if text is None:
            return sign == "-n"  # a command's output is taken to exist
        return bool(text) == (sign == "-n")

    def _binary(self, left: str, sign: str, right: str) -> bool | None:
        state = self._state
        one = state.taken_as_unset(text_of(left, state))
        equal = sign in ("=", "==", "!=")
        other = state.taken_as_unset(pattern_of(right, state) if self._double and equal else text_of(right, state))
        if one is None or other is None:
            return None
        if sign in _NUMBERS:  # a shell complains of what is no number, and continues with what follows else
            numbers = [int(text) for text in (one, other) if _WHOLE.fullmatch(text)]
            return len(numbers) == 2 and _NUMBERS[sign](numbers[0], numbers[1])
        if equal:
            same = fnmatch.fnmatchcase(one[:_LONGEST], other[:_LONGEST]) if self._double else one == other
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
