"""Accelerator: the quotient of a job by its symmetries, proved for data-parallel and rail shifts of regular clusters.

A window is a part of a job that tells all of it: where replicas are alike, and their machines, so is all that they do.
Shifting every replica by some along the data-parallel axis brings a job on a regular cluster onto itself; so does
shifting every rank along the tensor-parallel axis, where that is from rail to rail of every machine.  The ranks of so
many replicas, on one rail, are the window: all others are where one of them is after some shifts.  Groups lie inside it
or are shifted onto themselves, and so are the links (``turns``).  Colour refinement gives equal colours to what a
symmetry moves onto each other, so it looks at the window alone: every rank there has each of its groups once, every
link each of its users; a group has its members and links fewer times, by one factor for all of a kind.  Where anything
of this does not hold, fewer shifts are tried, and in the end the job is looked at as a whole.

With Llama 3 405B on 131,072 GPUs 8.4 million rows of usage become 33,000, and 15 s and 2.0 GB become 0.1 s and 0.3 GB
(TP 8, PP 16; processor time).  Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simcluster.base.arrays import Int32s, Ints, Numbers, mixed, numbered, places, rows_alike
from simcluster.base.link_columns import PerLink
from simcluster.planning.parallel import Plan, RankLayout, Ranks
from simcluster.symmetry.turns import LinkImages, link_images, parts_onto
from simcluster.topology.cluster import Cluster
from simcluster.topology.regular import Regular
from simcluster.traffic.traffic import Fabric

_FEW = 4096  # ranks among which most shifts fail that fail


class NotAlikeError(Exception):
    """The shift does not bring everything onto itself: the job has to be looked at as a whole."""


@dataclass(frozen=True, eq=False)
class Shift:
    """``onto[r]`` is the rank whose place r takes; after ``count`` times all are back, and ``rank[r]`` is the one of
    those that stands for them, which takes the place of r after ``turns[r]`` times, each by ``step`` ranks."""

    onto: Int32s
    rank: Numbers
    step: int
    count: int

    @cached_property
    def turns(self) -> Ints:
        """How often the ranks that stand for others take their places."""
        return (np.arange(len(self.rank)) - self.rank) // self.step

    @classmethod
    def along(cls, plan: Plan, axis: str, size: int, num_ranks: int) -> Shift:
        """Return the first ranks, ``size`` further along an axis."""
        ranks, count = np.arange(num_ranks, dtype=np.int32), getattr(plan, axis) // size
        step = size * math.prod(getattr(plan, other) for other in plan.order[: plan.order.index(axis)])
        turn = ranks // step % count
        onto = ranks + np.where(turn == count - 1, step - count * step, step)
        return cls(onto.astype(np.int32), ranks - turn * step, step, count)


@dataclass(frozen=True, eq=False)
class Counterparts:
    """Of every group (row) the one that it is ``like`` in the window.

    Where all of them are shifted onto themselves by some of the shifts (``turned``), which then cut the window, ``cut``
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


@dataclass(frozen=True, eq=False)
class Quotient:
    """``ranks`` of the window, ascending; ``rank[r]`` is what rank r becomes there by the ``shifts``, each done as
    often as it takes, and ``links`` know it of every link, which is what it will ``become``: both are None where all
    are themselves in the window."""

    ranks: Ints
    shifts: tuple[Shift, ...]
    rank: Numbers
    links: LinkImages | None
    become: PerLink | None

    @classmethod
    def whole(cls, num_ranks: int) -> Quotient:
        """Return the whole job, which no shift needs to bring onto itself."""
        return cls(np.arange(num_ranks), (), np.arange(num_ranks, dtype=np.int32), None, None)

    @cached_property
    def place(self) -> Ints:
        """The place of every rank among those of the window, -1 for others."""
        return places(self.ranks, len(self.rank))

    def counterparts(self, table: Ranks) -> Counterparts:
        """Return what groups (rows) become in the window."""
        rows = found = np.arange(len(table))
        row = np.full(len(self.rank), -1, dtype=np.int32)  # by a group's first rank
        row[table[:, 0]] = rows
        cut, turned = 0, []
        for number, shift in enumerate(self.shifts):
            like = row[shift.rank[table[:, 0]]]
            lower = (like >= 0).all() and (like <= rows).all()
            if lower and all((shift.rank[table[few]] == table[like[few]]).all() for few in (slice(1), slice(None))):
                found = like[found].astype(np.int64)
                continue
            part = table.shape[1] // shift.count
            if cut or not part or ((shift.rank[table] == table) != (np.arange(table.shape[1]) < part)).any():
                raise NotAlikeError
            if (shift.onto[table] != np.roll(table, -part, axis=1)).any():
                raise NotAlikeError
            cut, turned = part, [number]
        return Counterparts(found, cut, tuple(turned))


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


def windows_of(plan: RankLayout, fabric: Fabric) -> Iterator[Quotient]:
    """Generate the windows that a job with which nothing is wrong may have, the smallest first."""
    if not isinstance(plan, Plan) or not isinstance(fabric, Cluster) or not isinstance(fabric.wiring, Regular):
        return
    few, leaf = min(_FEW, plan.num_ranks), fabric.wiring.ends.leaf
    for size in range(1, plan.dp // 2 + 1):
        if plan.dp % size or parts_onto(leaf[:few], leaf[Shift.along(plan, "dp", size, few).onto]) is None:
            continue
        shifts = [Shift.along(plan, "dp", size, plan.num_ranks)]
        if plan.tp > 1:
            shifts = [Shift.along(plan, "tp", 1, plan.num_ranks), *shifts]
        for some in (shifts, shifts[1:]):
            rank: Numbers = np.arange(plan.num_ranks, dtype=np.int32)
            for shift in some:
                rank = shift.rank[rank]
            count = math.prod(shift.count for shift in some)
            links = link_images(fabric, [shift.onto for shift in some], rank, count) if some else None
            if links is not None:
                ranks = np.flatnonzero(rank == np.arange(len(rank)))
                yield Quotient(ranks, tuple(some), rank, links, links.become)
