"""States of spans in the breakdown of a rank's step: computation by kind, communication by axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simcluster.base.arrays import Bools, Int32s
from simcluster.results.host_waits import BESIDE
from simcluster.results.timeline import Spans

COMPUTE_KINDS = {
    "forward": ("forward",),
    "backward": ("backward", "input_grad", "weight_grad"),
    "recompute": ("recompute",),
    "optimizer": ("optimizer",),
    "other": ("other",),
}
# When several axes are in flight and nothing computes, the first of these is what holds the rank up: the collectives
# inside a layer block it, a stage boundary is next, and the reduction of gradients is waited for last.
EXPOSED = ("tp", "cp", "ep", "pp", "dp")
# A late member of one of these groups is a straggler; across stages it is a bubble.
GROUPS_OF_A_STAGE = ("tp", "cp", "ep", "dp")


class StateCodes:
    """States of the spans of a timeline with these words, by the codes of their streams and kinds."""

    def __init__(self, words: Sequence[str]) -> None:
        self._codes = {word: code for code, word in enumerate(words)}
        self._words = len(words)
        self.compute, self.storage, self.checkpoint = map(self.code, ("compute", "storage", "checkpoint"))
        self.in_stage = self._which(GROUPS_OF_A_STAGE)
        self.of_host = self._which(BESIDE)
        self._of_stream, self._of_kind = np.full((2, self._words), -1, dtype=np.int32)
        for state, kinds in enumerate(COMPUTE_KINDS.values()):
            self._of_kind[self._which(kinds)] = state
        for state, axis in enumerate(EXPOSED):
            self._of_stream[self._which((axis,))] = len(COMPUTE_KINDS) + state

    def code(self, word: str) -> int:
        """Return the code of a word; -1 if there is none."""
        return self._codes.get(word, -1)

    def of_spans(self, spans: Spans) -> Int32s:
        """Return the state of every span: its place among COMPUTE_KINDS and, after these, EXPOSED; -1 for another."""
        compute = spans.stream == self.compute
        return np.where(compute, self._of_kind[spans.kind], self._of_stream[spans.stream])

    def _which(self, words: Sequence[str]) -> Bools:
        found = np.zeros(self._words, dtype=bool)
        found[[self._codes[word] for word in words if word in self._codes]] = True
        return found
