"""Link usage of the groups of a job: what they put on links, drawn once for all that are laid out alike.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Int32s, Ints
from simcluster.collectives import Group, Phase
from simcluster.planning.parallel import Ranks
from simcluster.symmetry.quotient import NotAlikeError, Quotient
from simcluster.traffic.group_layouts import Places
from simcluster.traffic.link_usage import PatternTable, drawn, drawn_at_once, drawn_turning
from simcluster.traffic.methods import Method, phases_of
from simcluster.traffic.traffic import Fabric, group_of

Draw = Callable[[Ints, str, Method], tuple[PatternTable, ...]]
"""The picture of some groups by their places in a table, for a kind of call and a method."""


class Counterparts(NamedTuple):
    """Of every group (row) the one that it is ``like`` in the window.

    Where all of them are shifted onto themselves by one of the shifts (``turned``), which then cut the window, ``cut``
    says how many of their ranks lie in it: the first.
    """

    like: Ints
    cut: int = 0
    turned: tuple[int, ...] = ()


_TOGETHER = 1 << 17
"""Ranks in groups that are drawn at once, with all their hops: some hundred MB."""


class Pictures:
    """Draws groups on a fabric, in a ``window`` if there is one: see ``Communicators``."""

    def __init__(self, fabric: Fabric, num_ranks: int, window: Quotient | None) -> None:
        self._fabric, self._window, self._num_ranks = fabric, window, num_ranks
        self._places = Places(fabric, num_ranks)
        self._groups: dict[bytes, Group] = {}
        self._like = np.zeros(0, dtype=np.int64)
        self._row = np.empty(num_ranks if window else 0, dtype=np.int32)  # by a group's first rank, while it is needed

    def group(self, ranks: Ranks) -> Group:
        """The same for the same ranks: what it knows of itself is dear."""
        name = ranks.tobytes()
        if name not in self._groups:
            self._groups[name] = group_of(self._fabric, ranks)
        return self._groups[name]

    def described(self, ranks: Ranks, call: str, method: Method) -> Sequence[Phase]:
        """What the group of these ranks does in a call."""
        return phases_of(method, self.group(ranks), call)

    def layouts(self, table: Ranks) -> Ints:
        """Numbers, equal for groups (rows) that are laid out alike."""
        return self._places.layouts(table) if len(table) > 1 else np.zeros(len(table), dtype=np.int64)

    def counterparts(self, table: Ranks) -> Counterparts:
        """What groups become in the window."""
        window, rows = self._window, np.arange(len(table))
        if window is None:
            return Counterparts(rows)
        if len(self._like) == len(table) and (window.rank[table] == table[self._like]).all():
            return Counterparts(self._like)  # as in the table before: sends of all stages have the same order of pairs
        row = self._row
        row[:] = -1
        row[table[:, 0]] = rows
        found, cut = rows, 0
        turned: tuple[int, ...] = ()
        for number, shift in enumerate(window.shifts):
            like = row[shift.rank[table[:, 0]]]
            if (like >= 0).all() and (like <= rows).all() and _become(shift.rank, table, like):
                found = like[found].astype(np.int64)
                continue
            part = table.shape[1] // shift.count
            first = np.arange(table.shape[1]) < part
            if cut or not part or ((shift.rank[table] == table) != first).any():
                raise NotAlikeError
            onto = shift.onto[table]
            if (onto[:, :-part] != table[:, part:]).any() or (onto[:, -part:] != table[:, :part]).any():
                raise NotAlikeError
            cut, turned = part, (number,)
        if not cut:
            self._like = found
        return Counterparts(found, cut, turned)

    def counterparts_of_pairs(
        self, pairs: Iterable[tuple[int, int]], stage_ranks: Sequence[Ranks], tables: Sequence[Ranks]
    ) -> list[Counterparts]:
        """What pairs of ranks of two stages become in the window, from what each stage's ranks do."""
        stages = dict.fromkeys(stage for pair in pairs for stage in pair)
        alike = {stage: self.counterparts(stage_ranks[stage][:, None]) for stage in stages}
        return [
            alike[one] if np.array_equal(alike[one].like, alike[other].like) else self.counterparts(table)
            for (one, other), table in zip(pairs, tables, strict=True)
        ]

    def of_groups(self, table: Ranks, layout: Ints, cut: int) -> Draw:
        """Draws groups of a table; ``layout`` is -1 for those that are not drawn, ``cut`` as for ``counterparts``.

        Stages that are laid out alike have it in common, if in none of them phases load the links alike that do not in
        others.
        """
        together = (layout >= 0).sum() * (cut or table.shape[1]) <= _TOGETHER
        known: dict[tuple[int, str, str], tuple[Ints, tuple[PatternTable, ...] | None]] = {}

        def draw(those: Ints, call: str, method: Method) -> tuple[PatternTable, ...]:
            name = int(layout[those[0]]), call, method.algorithm
            if name not in known:
                alike = np.flatnonzero(layout == name[0])
                known[name] = alike, self._at_once(table[alike], call, method, cut) if together else None
            alike, parts = known[name]
            begin = int(np.searchsorted(alike, those[0]))
            if parts is not None and np.array_equal(alike[begin : begin + len(those)], those):
                return tuple(part.of_groups(begin, begin + len(those)) for part in parts)
            found = self._at_once(table[those], call, method, cut)
            if found is None and cut:
                raise NotAlikeError
            return found or drawn(self._fabric, table[those], self.described(table[those[0]], call, method))

        return draw

    def of_sends(self, pairs: Ranks, layout: Ints) -> Draw:
        """Draws pairs of a table; all that are laid out alike are drawn together."""
        known: dict[tuple[int, str], tuple[Ints, tuple[PatternTable, ...]]] = {}

        def draw(those: Ints, call: str, method: Method) -> tuple[PatternTable, ...]:
            name = int(layout[those[0]]), method.algorithm
            if name not in known:
                alike = np.flatnonzero(layout == name[0])
                phases = self.described(pairs[alike[0]], call, method)
                known[name] = alike, drawn(self._fabric, pairs[alike], phases)
            alike, parts = known[name]
            begin = int(np.searchsorted(alike, those[0]))
            return tuple(part.of_groups(begin, begin + len(those)) for part in parts)

        return draw

    def _at_once(self, table: Ranks, call: str, method: Method, cut: int) -> tuple[PatternTable, ...] | None:
        phases = self.described(table[0], call, method)
        if not cut:
            return drawn_at_once(self._fabric, table, phases, timed=method.pace is None)
        assert self._window is not None
        return drawn_turning(self._fabric, table, phases, cut, self._window.links.become)


def _become(rank: Int32s, table: Ranks, like: Int32s) -> bool:
    """Do groups become those that they are ``like``?  Most that do not show it in the first."""
    return bool((rank[table[:1]] == table[like[:1]]).all()) and bool((rank[table] == table[like]).all())
