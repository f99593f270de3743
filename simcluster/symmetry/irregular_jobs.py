"""Fast path: folding of jobs in which some ranks or links differ, valid wherever the regular job can be folded.

With irregularities, no shift brings the job onto itself. But it consists of as many copies of its window as there are
turns, and these differ only in their irregular ranks and links. A group's members, a link's users and the flows of a
group on links are turned as often as itself, but for a shift that brings the group onto itself: then they are in the
copies of all turns equally. So turns of a shift which differ in nothing make a *cell*: each rank, group and link sees
as many of every kind in each cell as all others of its cell do (an equitable partition, which colour refinement only
makes coarser). One copy of the window for each cell represents all, if what is seen of a cell counts as often as there
are turns in it (``CommunicatorLinkUsage.many`` and ``times``). Links of the window with the same load by the same
groups in all copies are one.

With 16 slow GPUs among 16,384 there are 136 copies; groups and classes take 0.3 s instead of 0.8 s if such links are
one (Llama 3 405B). Pure.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from simcluster.base.arrays import Ints, first_indices, hash64, number_by_first_use, positions_of_items, sort_order
from simcluster.base.clock import Profile
from simcluster.base.link_columns import LinkColumn, LinkValues
from simcluster.planning.disturbances import UNDISTURBED, Disturbances
from simcluster.symmetry.classes import hash_link_loads
from simcluster.symmetry.communicators import Communicators
from simcluster.symmetry.quotient import JobQuotient, NotSymmetricError
from simcluster.symmetry.tree_symmetry import LinkImages
from simcluster.traffic.communicator_usage import CommunicatorLinkUsage


@dataclass(frozen=True, eq=False)
class Irregularities:
    """Ranks and links of a job that differ from the others, as one colour (class number) per rank and link.

    ``links`` are those that differ from the wiring, ``varying`` those among them that change over time, by how.
    """

    ranks: Ints
    capacity: LinkValues
    links: Ints
    varying: Mapping[int, Profile]

    @classmethod
    def from_disturbances(
        cls, wired: LinkValues, capacity: LinkValues, slowness: Sequence[float],
        disturbances: Disturbances = UNDISTURBED,
    ) -> Irregularities:  # fmt: skip
        """Find the irregularities of a job; ``wired`` is each link's capacity without faults (B/s)."""
        varying, ranks = disturbances.capacities, np.zeros(len(slowness), dtype=np.int64)
        links = np.union1d(capacity.changed_links(wired), list(varying)) if varying else capacity.changed_links(wired)
        if slowness.count(slowness[0]) < len(slowness):
            ranks = np.unique(slowness, return_inverse=True)[1]
        several = disturbances.symmetry_key is not UNDISTURBED.symmetry_key
        numbers: dict[Hashable, int] = {(None, None): 0}
        for rank in range(len(slowness)) if several else disturbances.speeds:
            own = disturbances.speeds.get(rank), disturbances.symmetry_key(rank)
            ranks[rank] += len(slowness) * numbers.setdefault(own, len(numbers))
        ranks = np.unique(ranks, return_inverse=True)[1] if len(numbers) > 1 else ranks
        return cls(ranks, capacity, links.astype(np.int64), varying)

    def link_colours(self, links: Ints) -> Ints:
        """Return a colour for each of these links, equal for links of equal capacity over time."""
        found = self.capacity.values_at(links).view(np.int64)  # as ``bits``: none is -0
        changing: dict[Profile, list[int]] = {}
        for link, profile in self.varying.items():
            changing.setdefault(profile, []).append(link)
        for number, those in enumerate(changing.values()):
            there = np.isin(links, those)
            found[there] = hash64(found[there], 71 + number).view(np.int64)
        return found

    @property
    def has_irregularities(self) -> bool:
        """Whether any rank or link differs from the others."""
        return bool(len(self.links) or (self.ranks != self.ranks[0]).any())


def divide_into_cells(
    window: JobQuotient, communicators: Communicators, odd: Irregularities
) -> tuple[JobQuotient, Communicators]:
    """Reduce an irregular job to cells (sets of equal copies of the window); return quotient and communicators.

    NotSymmetricError where there are no groups, or something is not turned as often as what it is seen with.
    """
    kinds, onto = communicators.kinds, window.links
    turns = [shift.shift_counts for shift in window.shifts]
    if not (kinds and onto and onto.owner_gpus.max(initial=-1) < len(odd.ranks) and onto.links_move_with_gpus(turns)):
        raise NotSymmetricError
    for kind, (shift, turn) in product(kinds, enumerate(turns)):
        if shift not in kind.window_groups.turned and (turn[kind.table] != turn[kind.table[:, :1]]).any():
            raise NotSymmetricError
    cells = [_find_cells(axis, window, onto, turns, odd) for axis in range(len(turns))]  # of every number of turns
    sizes = [np.bincount(each) for each in cells]
    shape = tuple(map(len, sizes))  # one copy of the window for each choice of a cell of every shift
    of_rank = np.stack([each[turn] for each, turn in zip(cells, turns, strict=True)])
    copy_of, count = np.ravel_multi_index(tuple(of_rank), shape), math.prod(shape)
    code = copy_of * len(window.ranks) + window.window_positions[window.rank]
    number, first = number_by_first_use(code)
    become = onto.image.all_values
    there, used = np.flatnonzero(become == np.arange(len(become), dtype=become.dtype)), np.flatnonzero(become >= 0)
    place_of = positions_of_items(there, len(become))
    own, place = copy_of[onto.owner_gpus[used]] * len(there), place_of[become[used]]
    links = used[first_indices(own + place, count * len(there))].reshape(count, -1)  # the first of their cells
    seen, on = communicators.seen, place_of[communicators.seen.link]
    if on.min(initial=0) < 0:
        raise NotSymmetricError
    # links that carry the same of the same groups and are equal in all copies are one
    colours = hash64(odd.link_colours(links.ravel())).reshape(links.shape) ^ hash64(np.arange(len(links)), 61)[:, None]
    load = hash64(colours, 67).sum(axis=0, dtype=np.uint64)
    load[place_of[seen.rows_by_link[0]]] ^= hash_link_loads(seen.row_communicators, seen)
    which, one = number_by_first_use(load)
    equal = one[which]
    link = np.full(len(become), -1, dtype=np.int32)
    link[used] = links.ravel()[own + equal[place]]
    found = copy(communicators)
    ranks = positions_of_items(code[first], count * len(window.ranks)).reshape(count, -1)
    found.seen = _copy_groups_to_cells(communicators, sizes, of_rank, ranks, links, on, equal, odd)
    return JobQuotient(first, (), first[number], None, LinkColumn.from_array(link)), found


def _find_cells(axis: int, window: JobQuotient, onto: LinkImages, turns: Sequence[Ints], odd: Irregularities) -> Ints:
    """Return the cell number of each copy of the window along one shift; equal copies are in the same cell."""
    usual = int(np.bincount(odd.ranks).argmax())
    ranks = np.flatnonzero(odd.ranks != usual)
    links = odd.links[onto.owner_gpus[odd.links] >= 0]
    owner = onto.owner_gpus[links]
    found = np.zeros(window.shifts[axis].count, dtype=np.uint64)
    for salt, there, what, colour in (
        (3, ranks, window.rank[ranks], odd.ranks[ranks]),
        (5, owner, onto.image.values_at(links), odd.link_colours(links)),
    ):
        name = hash64(hash64(what, salt) ^ hash64(colour, salt + 4))
        for other, times in enumerate(turns):
            if other != axis:
                name = hash64(name ^ hash64(times[there], salt + 11 + other))
        np.add.at(found, turns[axis][there], name)
    return number_by_first_use(found)[0]


def _copy_groups_to_cells(
    communicators: Communicators, sizes: Sequence[Ints], of_rank: Ints, ranks: Ints, links: Ints, on: Ints,
    equal: Ints, odd: Irregularities,
) -> CommunicatorLinkUsage:  # fmt: skip
    """Copy the window's communicators to every cell, and map each communicator of the job to a copy.

    A group that a shift brings onto itself is one in all copies along that shift. There are ``sizes`` turns in each
    cell, ``of_rank`` has the cell of every rank, by shift.
    """
    seen, groups = communicators.seen, [kind.window_groups for kind in communicators.kinds]
    shape, every = tuple(map(len, sizes)), np.arange(len(seen))
    turned = np.array([[k in each.turned for each in groups for _ in each.representatives] for k in range(len(shape))])
    copies = np.indices(shape).reshape(len(shape), -1, 1)
    heads = of_rank[:, np.concatenate([kind.table[:, 0] for kind in communicators.kinds])]
    code = np.ravel_multi_index(tuple(np.where(turned[:, seen.of_group], 0, heads)), shape) * len(seen) + seen.of_group
    which, first = number_by_first_use(code)
    number = positions_of_items(code[first], len(links) * len(seen))
    group = number[np.ravel_multi_index(tuple(np.where(turned[:, None], 0, copies)), shape) * len(seen) + every]
    drawn = code[first] % len(seen)
    rows, member = np.flatnonzero(equal[on] == on), np.repeat(every, np.diff(seen.member))
    user, on = seen.row_communicators[rows], on[rows]
    many = np.ones((len(links), len(member)), dtype=np.int64)
    times = np.tile(np.bincount(equal)[on], (len(links), 1))
    changes = np.isin(links, list(odd.varying))
    for cell, turns, whole in zip(copies, sizes, turned, strict=True):
        moved = changes.copy()  # links that one of their users goes with, or that change on the way
        moved[:, on[~whole[user]]] = True
        many *= np.where(whole[member], turns[cell], 1)
        times *= np.where(whole[user] & moved[:, on], turns[cell], 1)
    of_member, rank, many = _sort_by_group(group[:, member], ranks[:, seen.rank], many)
    columns = seen.place[rows], links[:, on], seen.flows[rows], times
    of_row, place, link, flows, times = _sort_by_group(group[:, user], *columns)
    bounds = np.arange(len(drawn) + 1)
    return CommunicatorLinkUsage(
        colour=seen.colour[drawn], ordered=seen.ordered[drawn], blocking=seen.blocking[drawn],
        member=np.searchsorted(of_member, bounds), rank=rank, use=np.searchsorted(of_row, bounds), place=place,
        link=link, flows=flows, places=seen.places[drawn],
        apart={int(number[own]): uses for own, uses in seen.apart.items()},
        many=many, times=times, equal=(links[:, equal].ravel(), links.ravel()),
        of_group=which.astype(np.int32),
    )  # fmt: skip


def _sort_by_group(group: Ints, *columns: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    order = sort_order(group.ravel())
    return (np.broadcast_to(column, group.shape).ravel()[order] for column in (group, *columns))
