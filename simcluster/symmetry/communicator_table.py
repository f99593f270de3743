"""Communicator tables: groups and pairs of one kind, and representatives that are drawn.  Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.multiset_hash import ordered
from simcluster.planning.parallel import Ranks
from simcluster.symmetry.usage_patterns import Counterparts
from simcluster.traffic.incidence import Bindings
from simcluster.traffic.link_usage import PatternTable

Rows = tuple[Ints, Ints, Ints, Floats]
"""Group (its place among those drawn), which usage, link and flows, in columns."""


@dataclass(frozen=True, eq=False)
class CommunicatorTable:
    """Communicators of one kind, of equally many ranks each: rows of ``table``, numbered from ``first`` on.

    Those that tell of themselves (``those``) are drawn, and have a ``form``, a ``colour``, so many ``places`` of usage
    each, and ``usage`` in rows.
    """

    name: Hashable
    first: int
    table: Ranks
    those: Counterparts
    form: Ints
    colour: Ints
    places: Ints
    usage: Rows
    blocking: bool

    @property
    def directed(self) -> bool:
        """Are they a sender and its receiver, or a GPU and its host?"""
        return isinstance(self.name, tuple)

    def shown(self, place: Ints) -> Bindings:
        """Those drawn in columns, with the ranks that have a ``place`` in a window, by that place."""
        ranks = place[self.table[self.those.drawn]]
        there = ranks >= 0
        if not there.all():  # as many of each: a group lies in the window, or shifts cut it
            ranks = ranks[there].reshape(len(ranks), -1)
        group, use, link, flows = self.usage
        return Bindings(
            colour=self.colour,
            ordered=np.full(len(ranks), self.directed),
            blocking=np.full(len(ranks), self.blocking),
            member=np.arange(len(ranks) + 1) * ranks.shape[1],
            rank=ranks.ravel(),
            use=np.searchsorted(group, np.arange(len(ranks) + 1)),
            place=use,
            link=link,
            flows=flows,
            places=self.places,
        )


def rows_of(those: Ints, uses: Sequence[PatternTable]) -> list[Rows]:
    """Rows of usage of groups by their places."""
    return [(those[use.group], np.full(len(use.group), place), use.link, use.flows) for place, use in enumerate(uses)]


def in_rows(parts: Sequence[Rows]) -> Rows:
    """Rows of usage of all parts, each of which has its own usages, by group, then by which usage, then by link."""
    none = np.zeros(0, dtype=np.int64)
    every = [(none, none, none, np.zeros(0)), *parts]
    group, place, link = (np.concatenate([part[column] for part in every]) for column in range(3))
    order = ordered(group * (int(place.max(initial=0)) + 1) + place)  # links of a usage ascend already
    return group[order], place[order], link[order], np.concatenate([part[3] for part in every])[order]


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
