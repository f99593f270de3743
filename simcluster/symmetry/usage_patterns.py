"""Link usage of the groups of a job, computed once for all groups that are laid out alike.  Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from simcluster.base.arrays import Ints, Numbers, mixed, numbered, rows_alike
from simcluster.collectives import Group
from simcluster.planning.parallel import Ranks
from simcluster.symmetry.quotient import NotAlikeError, Quotient
from simcluster.traffic.link_usage import Cut, PatternTable, drawn_at_once, drawn_one_by_one
from simcluster.traffic.methods import Method, phases_of
from simcluster.traffic.traffic import Fabric, group_of


def layouts(fabric: Fabric, table: Ints) -> Ints:
    """Return a number for every group (row), equal where members meet in machines, NICs and NVSwitches equally."""
    found = np.zeros(len(table), dtype=np.uint64)
    if len(table) < 2:
        return found.astype(np.int64)
    switches, nics = fabric.seats(table.ravel())
    width = table.shape[1] * nics.shape[1]  # NICs of one rank may be those of another, in another order
    for salt, first_seen in (
        (0, _first_seen(fabric.hosts[table], None)),
        (1, _first_seen(switches.reshape(table.shape), 0)),
        (7, _first_seen(nics.reshape(len(table), width), -1)),
    ):
        found = mixed(found ^ rows_alike(first_seen), salt)
    return numbered(found)[0]


def _first_seen(table: Numbers, none: int | None) -> Ints:
    """Return every value as the place in its row where it is first seen; -1 for the value that says there is none."""
    span = int(table.max(initial=0)) + 2
    keys = np.arange(len(table))[:, None] * span + table + 1
    _, first, inverse = np.unique(keys.ravel(), return_index=True, return_inverse=True)
    place = first[inverse].reshape(table.shape) - np.arange(len(table))[:, None] * table.shape[1]
    return place if none is None else np.where(table == none, -1, place)


Draw = Callable[[Ints, str, Method], tuple[PatternTable, ...]]
"""The picture of some groups by their places for a kind of call and a method."""
_TOGETHER = 1 << 17
"""Ranks in groups that are drawn at once, with all their hops: some hundred MB."""


class Pictures:
    """Draws groups on a fabric, in a ``window``: see ``Communicators``."""

    def __init__(self, fabric: Fabric, window: Quotient) -> None:
        self._fabric, self._window = fabric, window
        self._groups: dict[bytes, Group] = {}

    def group(self, ranks: Ranks) -> Group:
        """Return the same group for the same ranks: what it knows of itself is dear."""
        name = ranks.tobytes()
        if name not in self._groups:
            self._groups[name] = group_of(self._fabric, ranks)
        return self._groups[name]

    def of_groups(self, table: Ranks, layout: Ints, cut: int) -> Draw:
        """Return what draws groups of a table with these layouts; ``cut`` as in ``Counterparts``.

        Groups that are laid out alike have their pictures in common, if in none of them phases load the links alike
        that do not in others.
        """
        known: dict[tuple[int, str, str], tuple[Ints, tuple[PatternTable, ...] | None]] = {}
        rounds: dict[int, dict[bytes, PatternTable]] = {}  # by layout: collectives have some in common
        window = Cut(cut, self._window.become) if cut and self._window.become else None
        together = len(table) * (cut or table.shape[1]) <= _TOGETHER

        def draw(those: Ints, call: str, method: Method) -> tuple[PatternTable, ...]:
            key = int(layout[those[0]] if together else those[0]), call, method.algorithm
            if key not in known:
                alike = np.flatnonzero(layout == key[0]) if together else those
                phases = phases_of(method, self.group(table[alike[0]]), call)
                own = rounds.setdefault(key[0], {})
                parts = drawn_at_once(
                    self._fabric, table[alike], phases, timed=method.pace is None, cut=window, known=own
                )
                if parts is None and cut:
                    raise NotAlikeError
                known[key] = alike, parts
            alike, parts = known[key]
            if parts is None:
                return drawn_one_by_one(
                    self._fabric, table[those], phases_of(method, self.group(table[those[0]]), call)
                )
            return tuple(part.of_groups(np.searchsorted(alike, those)) for part in parts)

        return draw
