"""Communicator tables: groups and pairs of one kind, and representatives that are drawn.  Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.base.multiset_hash import ordered
from simcluster.planning.parallel import Ranks
from simcluster.symmetry.call_patterns import Rows
from simcluster.traffic.incidence import Bindings


@dataclass(frozen=True, eq=False)
class CommunicatorTable:
    """Communicators of one kind, of equally many ranks each: rows of ``table``, numbered from ``first`` on.

    ``like[row]`` is the one that tells of a row; those that tell of themselves are ``drawn``, and have a ``form``, a
    ``colour``, so many ``places`` of usage each, and ``usage`` in rows.  ``turned`` are the shifts of the window, by
    their numbers, that bring each of them onto itself.
    """

    name: Hashable
    first: int
    table: Ranks
    like: Ints
    drawn: Ints
    form: Ints
    colour: Ints
    places: Ints
    usage: Rows
    blocking: bool
    turned: tuple[int, ...] = ()

    @property
    def directed(self) -> bool:
        """Are they a sender and its receiver, or a GPU and its host?"""
        return isinstance(self.name, tuple)

    @cached_property
    def told(self) -> Ints:
        """For every row the place of the one that tells of it among those drawn."""
        if len(self.drawn) == len(self.table):
            return self.like
        place = np.empty(len(self.table), dtype=np.int64)
        place[self.drawn] = np.arange(len(self.drawn))
        found: Ints = place[self.like]
        return found

    @property
    def whole(self) -> Bindings:
        """All of them in columns; only those drawn have rows of usage."""
        return self._columns(self.table, self.told, np.arange(len(self.table)))

    def shown(self, place: Ints) -> Bindings:
        """Those drawn in columns, with the ranks that have a ``place`` in a window, by that place."""
        ranks = place[self.table[self.drawn]]
        there = ranks >= 0
        if not there.all():  # as many of each: a group lies in the window, or shifts cut it
            ranks = ranks[there].reshape(len(ranks), -1)
        own = np.empty(len(self.table), dtype=np.int64)
        own[self.drawn] = np.arange(len(self.drawn))
        return self._columns(ranks, np.arange(len(ranks)), own)

    def _columns(self, table: Ranks, told: Ints, number: Ints) -> Bindings:
        group, place, link, flows = self.usage
        return Bindings(
            colour=self.colour[told],
            ordered=np.full(len(table), self.directed),
            blocking=np.full(len(table), self.blocking),
            member=np.arange(len(table) + 1) * table.shape[1],
            rank=table.ravel(),
            use=np.searchsorted(number[group], np.arange(len(table) + 1)),
            place=place,
            link=link,
            flows=flows,
            places=self.places[told],
        )


def in_rows(parts: Sequence[Rows]) -> Rows:
    """Rows of usage of all parts, by group, then by which usage, then by link."""
    if not parts:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
    if len(parts) == 1:
        return parts[0]
    group, place, link = (np.concatenate([part[column] for part in parts]) for column in range(3))
    flows = np.concatenate([part[3] for part in parts])
    order = ordered(link)
    order = order[ordered((group * (int(place.max(initial=0)) + 1) + place)[order])]
    return group[order], place[order], link[order], flows[order]


def tables_of(groups: Iterable[Ranks]) -> list[Ranks]:
    """Groups of one size, as rows, as long as the size stays."""
    if isinstance(groups, np.ndarray):
        return [groups]
    return [np.stack(list(some)) for _, some in groupby(groups, key=len)]


def pairs_of(stages: Iterable[tuple[int, int]], stage_ranks: Sequence[Ranks]) -> list[Ranks]:
    """The ranks of each two stages, by place; of stages of equally many these are parts of one table of all ranks."""
    if len({len(ranks) for ranks in stage_ranks}) > 1:
        return [np.stack([stage_ranks[one], stage_ranks[other]], axis=1) for one, other in stages]
    table = np.stack(stage_ranks)
    return [table[one :: other - one][:2].T for one, other in stages]
