"""A part of a job that tells all of it: where replicas are alike, and their machines, so is all that they do.

Shifting every replica by some along the data-parallel axis brings a job on a regular cluster onto itself.  The ranks of
so many replicas are the window: all others are where one of them is after some shifts.  Groups lie inside it or are
shifted onto themselves, and so are the links (``topology.turns``).  So classes of equal ranks need to be looked for in
the window alone: colour refinement gives equal colours to what a symmetry moves onto each other, and the window with
the groups that it cuts is what is left of the job by such moves (a quotient: every rank of it still has each of its
groups once, every link each of its users; a group has its members and links fewer times, by one factor for all of a
kind).  Where anything of this does not hold, the job is looked at as a whole.

Measured with Llama 3 405B (TP 8, PP 16; processor time, 2 cores): on 131,072 GPUs 8.4 million rows of usage become 0.26
million, and drawing them with the search for classes, 15 s and 2.0 GB, 0.55 s and 0.4 GB.  Pure; imports bindings and
the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from simcluster.planning.parallel import Layout, Plan
from simcluster.traffic.bindings import Bindings, Ints
from simcluster.traffic.traffic import Fabric


class NotAlikeError(Exception):
    """The shift does not bring everything onto itself: the job has to be looked at as a whole."""


class Turned(Protocol):
    """Links as they are in the window: see topology.turns.Turned."""

    @property
    def link(self) -> Ints: ...
    @property
    def settled(self) -> bool: ...


@runtime_checkable
class Turnable(Protocol):
    """A cluster that may know what a shift does to it (``topology.cluster.Cluster.turned``)."""

    def turned(self, onto: Ints, window: Ints, count: int) -> Turned | None: ...


@dataclass(frozen=True, eq=False)
class Window:
    """``ranks`` of the window, ascending; ``onto[r]`` is the rank whose place r takes, ``rank[r]`` and
    ``links.link[l]`` are what rank r and link l become in the window.  After ``count`` shifts all are back."""

    ranks: Ints
    onto: Ints
    rank: Ints
    count: int
    links: Turned


def windows_of(plan: Layout, fabric: Fabric, slowness: Sequence[float]) -> Iterator[Window]:
    """The windows that a job without other disturbances may have, the smallest first."""
    if not isinstance(plan, Plan) or not isinstance(fabric, Turnable) or len(set(slowness)) > 1:
        return
    ranks = np.arange(plan.num_ranks)
    stride = int(plan.grid[0, 1, 0, 0] - plan.grid[0, 0, 0, 0]) if plan.dp > 1 else 1
    replica = ranks // stride % plan.dp
    for size in range(1, plan.dp // 2 + 1):
        if plan.dp % size:
            continue
        onto = ranks + stride * ((replica + size) % plan.dp - replica)
        rank = ranks - stride * (replica - replica % size)
        links = fabric.turned(onto, rank, plan.dp // size)
        if links is not None:
            yield Window(np.flatnonzero(replica < size), onto, rank, plan.dp // size, links)


def shown(bindings: Bindings, window: Window, like: Ints) -> tuple[Bindings, Ints]:
    """What the window shows of communicators, with its ranks numbered from 0; and the number of each one there: those
    that are ``like`` themselves, with their ranks in the window."""
    own = np.flatnonzero(like == np.arange(len(like)))
    there = np.zeros(len(like), dtype=bool)
    there[own] = True
    place = np.full(len(window.rank), -1, dtype=np.int64)
    place[window.ranks] = np.arange(len(window.ranks))
    kept = np.repeat(there, np.diff(bindings.member))
    rank = place[bindings.rank[kept]]
    kept[kept] = rank >= 0
    starts = np.concatenate([[0], np.cumsum(kept)])
    found = replace(
        bindings,
        colour=bindings.colour[own],
        ordered=bindings.ordered[own],
        blocking=bindings.blocking[own],
        member=np.append(starts[bindings.member[own]], starts[-1]),
        rank=rank[rank >= 0],
        use=np.append(bindings.use[own], bindings.use[-1]),
        places=bindings.places[own],
        apart={},
    )
    return found, own
