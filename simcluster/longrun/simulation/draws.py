"""Random numbers of long runs: by what they are for, drawn in blocks for a group of runs when one of them asks.

A number depends on the seed, its stream, the run and the occurrence alone (``streams``), so groups may be of any size,
and a block that was dropped can be drawn again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cython
import numpy as np

from simcluster.base.arrays import Floats
from simcluster.longrun.streams import BLOCK, numbers_of
from simcluster.longrun.times import TimeSpec

if not cython.compiled:
    from simcluster.base.pointers import doubles, ints

_ROOM = 1 << 23
"""Numbers that are kept: 64 MB."""


class Draws:
    """Numbered kinds of draws (``add``, ``add_law``, ``add_constant``) of the runs ``first`` to ``first + count``."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.first = self.count = self.place = self.depth = self.used = 0
        self.sources: list[tuple[str, Sequence[int], Callable[[Floats], Floats]] | None] = []
        self.constants: list[float] = []
        self.begins = ints(np.empty(0, dtype=np.int32))

    def add_constant(self, value: float) -> int:
        """Return the number of a draw that always has that value."""
        self.sources.append(None)
        self.constants.append(value)
        return len(self.sources) - 1

    def add(self, stream: str, columns: Sequence[int], transform: Callable[[Floats], Floats]) -> int:
        """Return the number of a draw: a ``transform`` of uniform numbers, shape (draws, columns of the stream)."""
        self.sources.append((stream, columns, transform))
        self.constants.append(0.0)
        return len(self.sources) - 1

    def add_law(self, stream: str, law: TimeSpec) -> int:
        """Return the number of a draw of seconds by a law."""
        return self.add(stream, range(law.draws), law.quantile) if law.draws else self.add_constant(law.mean)

    def prepare(self) -> None:
        """Allocate the tables, once every draw has been added."""
        self.fixed_array = np.array(self.constants)
        self.fixed = doubles(self.fixed_array)
        self._deepen(2)
        if cython.compiled:
            self.number_array = np.empty(_ROOM)  # takes memory where it is written
            self.numbers = doubles(self.number_array)
        else:
            self.numbers = []

    def start_group(self, first: int, count: int) -> None:
        """Draw for these runs from now on."""
        self.first, self.count, self.place, self.used = first, count, 0, 0
        self._deepen(self.depth)

    def choose(self, run: int) -> None:
        """Return numbers of this run of the group from now on."""
        self.place = run - self.first

    def value(self, number: cython.int, occurrence: cython.int) -> cython.double:
        """Return a draw of the chosen run."""
        block: cython.int = occurrence // 64  # BLOCK, as a constant that the compiler knows
        begin: cython.int = -1
        if block < self.depth:
            begin = self.begins[number * self.depth + block]
        if begin < 0:
            if self.sources[number] is None:
                return self.fixed[number]
            begin = self.draw_block(number, block)
        return self.numbers[begin + self.place * 64 + occurrence % 64]

    def draw_block(self, number: cython.int, block: cython.int) -> cython.int:
        """Draw a block for all runs of the group, or, where that takes too much room, for the chosen run alone."""
        stream, columns, transform = self.sources[number]
        if self.used + self.count * BLOCK > _ROOM:
            self.start_group(self.first + self.place, 1)
        if block >= self.depth:
            self._deepen(2 * block)
        uniform = np.empty((len(columns), self.count, BLOCK))
        for column, numbers in zip(columns, uniform, strict=True):
            numbers_of(self.seed, stream, block, column, self.first, numbers)
        values = transform(uniform.reshape(len(columns), -1).T)
        begin: cython.int = self.used
        self.used += len(values)
        if cython.compiled:
            self.number_array[begin : self.used] = values
        else:
            self.numbers[begin : self.used] = values.tolist()
        self.begins[number * self.depth + block] = begin
        return begin

    def _deepen(self, depth: int) -> None:
        """Make a table with that many blocks per draw, which keeps the present blocks."""
        table = np.full((len(self.sources), depth), -1, dtype=np.int32)
        if self.used:
            known = [self.begins[place] for place in range(len(self.sources) * self.depth)]
            table[:, : self.depth] = np.reshape(known, (len(self.sources), self.depth))
        self.begin_array, self.depth = table.reshape(-1), depth
        self.begins = ints(self.begin_array)
