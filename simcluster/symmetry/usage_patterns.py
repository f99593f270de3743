"""Link usage of the groups of a job: what they put on links, drawn once for all that are laid out alike.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.base.multiset_hash import places
from simcluster.collectives import Group
from simcluster.planning.parallel import Ranks
from simcluster.symmetry.quotient import NotAlikeError, Quotient
from simcluster.traffic.group_layouts import Places
from simcluster.traffic.link_usage import PatternTable, drawn, drawn_at_once, drawn_turning, single
from simcluster.traffic.methods import Method, phases_of
from simcluster.traffic.traffic import Fabric, copy_pattern, group_of

Draw = Callable[[Hashable, Ints, str, Method], tuple[PatternTable, ...]]
"""The picture of some groups by their places, of what their ops call them, for a kind of call and a method."""


@dataclass(frozen=True, eq=False)
class Counterparts:
    """Of every group (row) the one that it is ``like`` in the window.

    Where all of them are shifted onto themselves by one of the shifts (``turned``), which then cut the window, ``cut``
    says how many of their ranks lie in it: the first.
    """

    like: Ints
    cut: int = 0
    turned: tuple[int, ...] = ()

    @cached_property
    def drawn(self) -> Ints:
        """The groups that are like themselves."""
        return np.flatnonzero(self.like == np.arange(len(self.like)))

    @cached_property
    def told(self) -> Ints:
        """For every group the place of the one that it is like among those drawn."""
        return places(self.drawn, len(self.like))[self.like]


_TOGETHER = 1 << 17
"""Ranks in groups that are drawn at once, with all their hops: some hundred MB."""


class Pictures:
    """Draws groups on a fabric, in a ``window``: see ``Communicators``."""

    def __init__(self, fabric: Fabric, window: Quotient) -> None:
        self._fabric, self._window = fabric, window
        self._places = Places(fabric, len(window.rank))
        self._groups: dict[bytes, Group] = {}
        self._last = Counterparts(np.zeros(0, dtype=np.int64))

    def group(self, ranks: Ranks) -> Group:
        """The same for the same ranks: what it knows of itself is dear."""
        name = ranks.tobytes()
        if name not in self._groups:
            self._groups[name] = group_of(self._fabric, ranks)
        return self._groups[name]

    def layouts(self, table: Ranks) -> Ints:
        """Numbers, equal for groups (rows) that are laid out alike."""
        return self._places.layouts(table) if len(table) > 1 else np.zeros(len(table), dtype=np.int64)

    def counterparts(self, table: Ranks) -> Counterparts:
        """What groups become in the window."""
        window, rows, last = self._window, np.arange(len(table)), self._last
        if len(last.like) == len(table) and (window.rank[table] == table[last.like]).all():
            return last  # as in the table before: sends of all stages have the same order of pairs
        row = np.full(len(window.rank), -1, dtype=np.int32)  # by a group's first rank
        row[table[:, 0]] = rows
        found, cut = rows, 0
        turned: tuple[int, ...] = ()
        for number, shift in enumerate(window.shifts):
            like = row[shift.rank[table[:, 0]]]
            lower = (like >= 0).all() and (like <= rows).all()
            if lower and all((shift.rank[table[few]] == table[like[few]]).all() for few in (slice(1), slice(None))):
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
        counterparts = Counterparts(found, cut, turned)
        if not cut:
            self._last = counterparts
        return counterparts

    def of_groups(self, table: Ranks, layout: Ints, cut: int) -> Draw:
        """Draws groups of a table, with the numbers of their layouts; ``cut`` as for ``counterparts``.

        Stages that are laid out alike have it in common, if in none of them phases load the links alike that do not in
        others.
        """
        known: dict[tuple[int, str, str], tuple[Ints, tuple[PatternTable, ...] | None]] = {}

        def at_once(those: Ints, call: str, method: Method) -> tuple[PatternTable, ...] | None:
            phases = phases_of(method, self.group(table[those[0]]), call)
            if not cut:
                return drawn_at_once(self._fabric, table[those], phases, timed=method.pace is None)
            assert self._window.become is not None
            return drawn_turning(self._fabric, table[those], phases, cut, self._window.become)

        def draw(name: Hashable, those: Ints, call: str, method: Method) -> tuple[PatternTable, ...]:
            if isinstance(name, tuple) and name[0] == "copy":
                return single((copy_pattern(self._fabric, rank, name[1]),) for rank in table[those, 0].tolist())
            key = int(layout[those[0]]), call, method.algorithm
            if key not in known:
                alike = np.flatnonzero(layout == key[0])
                known[key] = alike, at_once(alike, call, method) if together else None
            alike, parts = known[key]
            begin = int(np.searchsorted(alike, those[0]))
            if parts is not None and np.array_equal(alike[begin : begin + len(those)], those):
                return tuple(part.of_groups(begin, begin + len(those)) for part in parts)
            found = at_once(those, call, method)
            if found is None and cut:
                raise NotAlikeError
            return found or drawn(self._fabric, table[those], phases_of(method, self.group(table[those[0]]), call))

        together = len(table) * (cut or table.shape[1]) <= _TOGETHER
        return draw
