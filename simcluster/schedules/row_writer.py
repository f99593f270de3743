"""Writes the row of a stage from rules such as "three times F of chunk 0, then [F0|B1]".  Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import cast

from simcluster.schedules.actions import Action, Kind


class RowWriter:
    """The row of one stage being written: a word names a kind and a chunk, and takes that chunk's next microbatch.

    ``F0`` is F of chunk 0, ``[F0|B1]`` a fused pair, ``W`` alone the oldest I whose W is still to come.
    ``first_microbatch[chunk]`` is where the count of a chunk begins (a bidirectional schedule's chunks differ).
    """

    def __init__(self, first_microbatch: Sequence[int] = (0, 0)) -> None:
        self.actions: list[Action] = []
        self.fused: list[int] = []
        self._first = first_microbatch
        self._count: Counter[str] = Counter()
        self._without_weight: deque[Action] = deque()

    def count(self, word: str) -> int:
        """How often this pass of this chunk is there, B counting as I."""
        return self._count[word]

    def run(self, words: str, times: int = 1) -> None:
        """These words in turn, so many times (none for a negative number)."""
        for word in words.split() * times:
            if word.startswith("["):
                self.fused.append(len(self.actions))
            for single in word.strip("[]").split("|"):
                self.actions.append(self._next(single))

    def _next(self, word: str) -> Action:
        if word == "W":
            waiting = self._without_weight.popleft()
            return Action("W", waiting.microbatch, waiting.chunk)
        kind, chunk = cast(Kind, word[0]), int(word[1:])
        counted = f"I{chunk}" if kind == "B" else word  # a microbatch has one backward, whole or split
        action = Action(kind, self._first[chunk] + self._count[counted], chunk)
        self._count[counted] += 1
        if kind == "I":
            self._without_weight.append(action)
        elif kind == "W":
            self._without_weight.remove(Action("I", action.microbatch, chunk))
        return action
