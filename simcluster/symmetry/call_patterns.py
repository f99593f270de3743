"""Call patterns: what groups have in common that are laid out alike and run the same: methods, activities, latencies.

Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.symmetry.demand import Call
from simcluster.traffic.fairness import Usage
from simcluster.traffic.link_usage import PatternTable
from simcluster.traffic.methods import Method
from simcluster.traffic.traffic import Pattern

Rows = tuple[Ints, Ints, Ints, Floats]
"""Group, which usage, link and flows, in columns."""


@dataclass(frozen=True)
class CallPattern:
    """``methods`` by call; of each call the ``parts`` of its pattern: (which usage, share, rounds, which column of
    ``latency``), where a row of ``latency`` is one group, 0 where NCCL's pace has its own."""

    methods: dict[Call, Method]
    parts: dict[Call, tuple[tuple[int, float, int, int], ...]]
    latency: Floats
    row: Mapping[int, int]  # of a communicator's number

    def patterns(self, number: int, call: Call, usages: Sequence[Usage]) -> list[Pattern]:
        """The pattern of a call of one group, with these usages."""
        latency = self.latency[self.row[number]].tolist()
        return [Pattern(usages[use], share, rounds, latency[column]) for use, share, rounds, column in self.parts[call]]


class CallPatterns(list[CallPattern]):
    """All forms of a job, and the colours of groups: equal for those of equal kind, form and latencies."""

    def __init__(self) -> None:
        super().__init__()
        self._colours: dict[Hashable, int] = {}

    def add(
        self, kind: Hashable, numbers: Ints, methods: dict[Call, Method], pictures: dict[Call, tuple[PatternTable, ...]]
    ) -> tuple[Ints, list[PatternTable]]:
        """A new form; the colours of its groups, and their usages."""
        uses, use_of = _uses(pictures)
        latency: list[Floats] = []
        parts: dict[Call, tuple[tuple[int, float, int, int], ...]] = {}
        nature: list[Hashable] = [kind]
        for call, picture in pictures.items():
            found = []
            for part in picture:
                use = use_of[id(part)]
                found.append((use, part.share, part.rounds, len(latency)))
                latency.append(part.latency if methods[call].pace is None else np.zeros_like(part.latency))
                nature.append((call, methods[call].pace, use, part.share, part.rounds))
            parts[call] = tuple(found)
            nature.append((call, methods[call].pace))
        table = np.stack(latency, axis=1) if latency else np.zeros((len(numbers), 0))
        row = dict(zip(numbers.tolist(), range(len(numbers)), strict=True))
        self.append(CallPattern(methods, parts, table, row))
        kinds, which = np.zeros(min(1, len(table)), dtype=np.int64), np.zeros(len(table), dtype=np.int64)
        if (table != table[:1]).any():
            _, kinds, which = np.unique(table, axis=0, return_index=True, return_inverse=True)
        own = [
            self._colours.setdefault((*nature, *table[place].tolist()), len(self._colours)) for place in kinds.tolist()
        ]
        colour = np.array(own, dtype=np.int64)[which.ravel()]
        return colour, uses


def _uses(pictures: dict[Call, tuple[PatternTable, ...]]) -> tuple[list[PatternTable], dict[int, int]]:
    """The parts of pictures that use the links differently, and which of them every part is like, by its ``id``."""
    every = {id(part): part for picture in pictures.values() for part in picture}
    first: dict[bytes, int] = {}
    of = {number: first.setdefault(part.name if len(every) > 1 else b"", number) for number, part in every.items()}
    place = {number: place for place, number in enumerate(first.values())}
    return [every[number] for number in place], {number: place[like] for number, like in of.items()}


def rows_of(those: Ints, uses: Sequence[PatternTable]) -> list[Rows]:
    """Rows of usage of groups by their places in a table."""
    return [(those[use.group], np.full(len(use.group), place), use.link, use.flows) for place, use in enumerate(uses)]
