"""Fast path: the quotient of a job by its data-parallel and rail shifts, proved for regular clusters.

A window is a part of a job that represents all of it: where replicas and their nodes are equal, so are their steps.
Shifting every replica along the data-parallel axis brings a job on a regular cluster onto itself; so does shifting
every rank along the tensor-parallel axis, where that is from rail to rail of every node. The ranks of some replicas, on
one rail, are the window: all others are where one of them is after some shifts. Groups lie inside it or are shifted
onto themselves, and so are the links (``turns``). Colour refinement gives equal colours to what a symmetry moves onto
each other, so it looks at the window alone: every rank there has each of its groups once, every link each of its users;
a group has its members and links fewer times, by one factor for all of a kind. Where anything of this does not hold,
fewer shifts are tried, and in the end the job is looked at as a whole.

With Llama 3 405B on 131,072 GPUs 8.4 million rows of usage become 33,000, and 15 s and 2.0 GB become 0.1 s and 0.3 GB
(TP 8, PP 16; processor time). Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simcluster.base.arrays import Int32s, Ints, Numbers, hash64, hash_rows, position_of, renumber
from simcluster.base.link_columns import PerLink
from simcluster.planning.parallel import Plan, RankLayout, Ranks
from simcluster.symmetry.turns import LinkImages, find_link_images, map_parts
from simcluster.topology.cluster import Cluster
from simcluster.topology.regular import Regular
from simcluster.traffic.traffic import Fabric

_FEW = 4096  # ranks among which most shifts fail that fail


class NotAlikeError(Exception):
    """Error of a shift that does not bring everything onto itself, so that no window represents the job."""


@dataclass(frozen=True, eq=False)
class JobShift:
    """Symmetry of a job that moves every rank by ``step`` ranks: rank r takes the place of rank ``onto[r]``.

    After ``count`` times all are back; ``rank[r]`` is the representative that takes the place of r after ``turns[r]``
    times.
    """

    onto: Int32s
    rank: Numbers
    step: int
    count: int

    @cached_property
    def turns(self) -> Ints:
        """Number of shifts from each rank's representative to the rank."""
        return (np.arange(len(self.rank)) - self.rank) // self.step

    @classmethod
    def along(cls, plan: Plan, axis: str, size: int, num_ranks: int) -> JobShift:
        """Return the shift that moves every rank ``size`` positions along an axis."""
        ranks, count = np.arange(num_ranks, dtype=np.int32), getattr(plan, axis) // size
        step = size * math.prod(getattr(plan, other) for other in plan.order[: plan.order.index(axis)])
        turn = ranks // step % count
        onto = ranks + np.where(turn == count - 1, step - count * step, step)
        return cls(onto.astype(np.int32), ranks - turn * step, step, count)


@dataclass(frozen=True, eq=False)
class Counterparts:
    """Representative of every group (row) in the window (``like``), and how much of each group lies in it (``cut``).

    Where all of them are shifted onto themselves by some of the shifts (``turned``), which then cut the window, ``cut``
    is how many of their ranks lie in it: the first.
    """

    like: Ints
    cut: int = 0
    turned: tuple[int, ...] = ()

    @cached_property
    def drawn(self) -> Ints:
        """Groups that represent themselves."""
        return np.flatnonzero(self.like == np.arange(len(self.like)))

    @cached_property
    def told(self) -> Ints:
        """For every group the position of its representative among ``drawn``."""
        return position_of(self.drawn, len(self.like))[self.like]


@dataclass(frozen=True, eq=False)
class Quotient:
    """A job seen through a window: the window's ``ranks``, ascending, and the image of every rank and link there.

    ``rank[r]`` is the image of rank r under the ``shifts``, ``links`` has that of every link (``become``): both are
    None where all are themselves in the window.
    """

    ranks: Ints
    shifts: tuple[JobShift, ...]
    rank: Numbers
    links: LinkImages | None
    become: PerLink | None

    @classmethod
    def whole(cls, num_ranks: int) -> Quotient:
        """Return the trivial quotient, whose window is the whole job."""
        return cls(np.arange(num_ranks), (), np.arange(num_ranks, dtype=np.int32), None, None)

    @cached_property
    def place(self) -> Ints:
        """Position of every rank among those of the window, -1 for others."""
        return position_of(self.ranks, len(self.rank))

    def counterparts(self, table: Ranks) -> Counterparts:
        """Return which groups (rows of ranks) in the window represent all these groups."""
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


def number_layouts(fabric: Fabric, table: Ints) -> Ints:
    """Return a number per group (row of ranks), equal where members share nodes, NICs and NVSwitches equally."""
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
        found = hash64(found ^ hash_rows(first_seen), salt)
    return renumber(found)[0]


def _first_seen(table: Numbers, none: int | None) -> Ints:
    """Return for every value the position in its row where it first occurs; -1 for ``none``."""
    span = int(table.max(initial=0)) + 2
    keys = np.arange(len(table))[:, None] * span + table + 1
    _, first, inverse = np.unique(keys.ravel(), return_index=True, return_inverse=True)
    place = first[inverse].reshape(table.shape) - np.arange(len(table))[:, None] * table.shape[1]
    return place if none is None else np.where(table == none, -1, place)


def find_windows(plan: RankLayout, fabric: Fabric) -> Iterator[Quotient]:
    """Generate the possible windows of an undisturbed job, the smallest first."""
    if not isinstance(plan, Plan) or not isinstance(fabric, Cluster) or not isinstance(fabric.wiring, Regular):
        return
    few, leaf = min(_FEW, plan.num_ranks), fabric.wiring.ends.leaf
    for size in range(1, plan.dp // 2 + 1):
        if plan.dp % size or map_parts(leaf[:few], leaf[JobShift.along(plan, "dp", size, few).onto]) is None:
            continue
        shifts = [JobShift.along(plan, "dp", size, plan.num_ranks)]
        if plan.tp > 1:
            shifts = [JobShift.along(plan, "tp", 1, plan.num_ranks), *shifts]
        for some in (shifts, shifts[1:]):
            rank: Numbers = np.arange(plan.num_ranks, dtype=np.int32)
            for shift in some:
                rank = shift.rank[rank]
            count = math.prod(shift.count for shift in some)
            links = find_link_images(fabric, [shift.onto for shift in some], rank, count) if some else None
            if links is not None:
                ranks = np.flatnonzero(rank == np.arange(len(rank)))
                yield Quotient(ranks, tuple(some), rank, links, links.become)
