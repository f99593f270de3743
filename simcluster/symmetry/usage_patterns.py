"""Link usage of the groups of a job, computed once for all groups that are laid out alike.  Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.base.multiset_hash import mixed, numbered, rows_alike
from simcluster.collectives import Group
from simcluster.planning.parallel import Ranks
from simcluster.symmetry.quotient import NotAlikeError, Quotient
from simcluster.traffic.link_usage import PatternTable, drawn_at_once, drawn_one_by_one, drawn_turning
from simcluster.traffic.methods import Method, phases_of
from simcluster.traffic.traffic import Fabric, Seated, group_of


class Places:
    """Machine, NICs and NVSwitch of every rank, numbered."""

    def __init__(self, fabric: Fabric, num_ranks: int) -> None:
        self._fabric, self._num_ranks = fabric, num_ranks
        self._columns: list[Ints] = []

    def layouts(self, table: Ints) -> Ints:
        """Return a number for every group (row), equal where members meet in machines, NICs and NVSwitches equally."""
        found = np.zeros(len(table), dtype=np.uint64)
        if len(table) < 2:
            return found.astype(np.int64)
        hosts, switches, *nics = self._seats(table)
        for number, seen in enumerate([hosts, switches]):
            found = mixed(found ^ rows_alike(_first_seen(seen, 0 if number else None)), number)
        if nics:  # NICs of one rank may be those of another, in another order
            found = mixed(found ^ rows_alike(_first_seen(np.concatenate(nics, axis=1), -1)), 7)
        return numbered(found)[0]

    def _seats(self, table: Ints) -> list[Ints]:
        """Return machine, NVSwitch and NICs of many ranks."""
        fabric = self._fabric
        seats = fabric.seats(table.ravel()) if isinstance(fabric, Seated) else None
        if seats is not None and isinstance(fabric, Seated):
            columns = [fabric.hosts[table.ravel()], seats[0], *seats[1].T]
            return [column.reshape(table.shape) for column in columns]
        if not self._columns:
            switches, nics = _by_name(fabric, self._num_ranks)
            self._columns = [np.array(fabric.host_of[: self._num_ranks], dtype=np.int64), switches, *nics.T]
        return [column[table] for column in self._columns]


def _first_seen(table: Ints, none: int | None) -> Ints:
    """Return every value as the place in its row where it is first seen; -1 for the value that says there is none."""
    span = int(table.max(initial=0)) + 2
    keys = np.arange(len(table))[:, None] * span + table + 1
    _, first, inverse = np.unique(keys.ravel(), return_index=True, return_inverse=True)
    place = first[inverse].reshape(table.shape) - np.arange(len(table))[:, None] * table.shape[1]
    return place if none is None else np.where(table == none, -1, place)


def _by_name(fabric: Fabric, num_ranks: int) -> tuple[Ints, Ints]:
    """Return numbers of NVSwitches (0 for none) and NICs (-1 behind the last), rank by rank."""
    names: dict[str, int] = {"": 0}
    switches = [names.setdefault(fabric.nvswitch(rank), len(names)) for rank in range(num_ranks)]
    uplinks = [fabric.uplinks(rank) for rank in range(num_ranks)]
    nics = np.full((num_ranks, max(map(len, uplinks), default=0)), -1, dtype=np.int64)
    for rank, own in enumerate(uplinks):
        nics[rank, : len(own)] = [names.setdefault(name, len(names)) for name in own]
    return np.array(switches, dtype=np.int64), nics


Draw = Callable[[Ints, str, Method], tuple[PatternTable, ...]]
"""The picture of some groups by their places for a kind of call and a method."""
_TOGETHER = 1 << 17
"""Ranks in groups that are drawn at once, with all their hops: some hundred MB."""


class Pictures:
    """Draws groups on a fabric, in a ``window``: see ``Communicators``."""

    def __init__(self, fabric: Fabric, window: Quotient) -> None:
        self._fabric, self._window = fabric, window
        self.layouts = Places(fabric, len(window.rank)).layouts
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
        together = len(table) * (cut or table.shape[1]) <= _TOGETHER

        def at_once(those: Ints, call: str, method: Method) -> tuple[PatternTable, ...] | None:
            phases = phases_of(method, self.group(table[those[0]]), call)
            if not cut:
                return drawn_at_once(self._fabric, table[those], phases, timed=method.pace is None)
            assert self._window.become is not None
            return drawn_turning(self._fabric, table[those], phases, cut, self._window.become)

        def draw(those: Ints, call: str, method: Method) -> tuple[PatternTable, ...]:
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
            phases = phases_of(method, self.group(table[those[0]]), call)
            return drawn_one_by_one(self._fabric, table[those], phases) if found is None else found

        return draw
