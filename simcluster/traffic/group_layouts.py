"""Groups that are laid out alike on a cluster's machines, NICs and NVSwitches: what an algorithm can tell apart.

Pure.
"""

from __future__ import annotations

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.base.multiset_hash import mixed, numbered, rows_alike
from simcluster.traffic.traffic import Fabric, Seated


class Places:
    """Machine, NICs and NVSwitch of every rank, numbered."""

    def __init__(self, fabric: Fabric, num_ranks: int) -> None:
        self._fabric, self._num_ranks = fabric, num_ranks
        self._columns: list[Ints] = []

    def layouts(self, table: Ints) -> Ints:
        """A number for every group (row): equal where members meet in machines, NICs and NVSwitches in equal ways."""
        found = np.zeros(len(table), dtype=np.uint64)
        hosts, switches, *nics = self._seats(table)
        for number, seen in enumerate([hosts, switches]):
            found = mixed(found ^ rows_alike(_first_seen(seen, 0 if number else None)), number)
        if nics:  # NICs of one rank may be those of another, in another order
            found = mixed(found ^ rows_alike(_first_seen(np.concatenate(nics, axis=1), -1)), 7)
        return numbered(found)[0]

    def _seats(self, table: Ints) -> list[Ints]:
        """Machine, NVSwitch and NICs of many ranks."""
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
    """Every value as the place in its row where it is first seen; -1 for the value that says there is none."""
    span = int(table.max(initial=0)) + 2
    keys = np.arange(len(table))[:, None] * span + table + 1
    _, first, inverse = np.unique(keys.ravel(), return_index=True, return_inverse=True)
    place = first[inverse].reshape(table.shape) - np.arange(len(table))[:, None] * table.shape[1]
    return place if none is None else np.where(table == none, -1, place)


def _by_name(fabric: Fabric, num_ranks: int) -> tuple[Ints, Ints]:
    """Numbers of NVSwitches (0 for none) and NICs (-1 behind the last), rank by rank."""
    names: dict[str, int] = {"": 0}
    switches = [names.setdefault(fabric.nvswitch(rank), len(names)) for rank in range(num_ranks)]
    uplinks = [fabric.uplinks(rank) for rank in range(num_ranks)]
    nics = np.full((num_ranks, max(map(len, uplinks), default=0)), -1, dtype=np.int64)
    for rank, own in enumerate(uplinks):
        for place, name in enumerate(own):
            nics[rank, place] = names.setdefault(name, len(names))
    return np.array(switches, dtype=np.int64), nics
