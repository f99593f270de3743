"""Accelerator: the equitable partition of ranks, groups and links, proved for every job that is not played in steps.

One representative plays for all ranks of a class, which behave alike.

The coarsest equitable partition of ranks, groups and links by colour refinement: start from what makes them differ by
themselves (stage, speed, capacity), then split classes whose members see different classes around them, until nothing
splits.  Ranks of one class then have identical timelines (MODELLING.md I.1).  Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple, Protocol, TypeAlias, overload

import numpy as np

from simcluster.base.arrays import Bools, Floats, Hashes, Ints
from simcluster.base.multiset_hash import bits, compact, count, mixed, numbered, ordered, sums
from simcluster.traffic.fairness import Usage
from simcluster.traffic.incidence import Bindings


class LinkClasses(Protocol):
    """See ``Classes.used`` and ``Classes.of_link``."""

    @property
    def used(self) -> Ints: ...
    @property
    def of_link(self) -> Ints: ...


class _Found(NamedTuple):
    used: Ints
    of_link: Ints


@dataclass(frozen=True)
class Classes:
    """The partition: class of each rank and communicator; the representative (lowest number) of each class of ranks and
    links.  Links of a class are looked at through one of them."""

    of_rank: Sequence[int]
    of_communicator: Sequence[int]
    rank_representatives: tuple[int, ...]
    link_representatives: tuple[int, ...]
    quotient: Sequence[tuple[Usage, ...]]  # per communicator class: its usages with all its members, on link classes
    find_shared: Callable[[], tuple[bool, ...]] = field(compare=False, repr=False)
    links: LinkClasses = field(compare=False, repr=False)

    @cached_property
    def shared(self) -> tuple[bool, ...]:
        """Whether another class may be on one of its links at the same time, per communicator class."""
        return self.find_shared()

    @property
    def used(self) -> Ints:
        """The links that are used, ascending."""
        return self.links.used

    @property
    def of_link(self) -> Ints:
        """The class of each of those that are used."""
        return self.links.of_link

    def multiplicity(self) -> list[int]:
        """Ranks in every class."""
        counts: list[int] = np.bincount(self.of_rank, minlength=len(self.rank_representatives)).tolist()
        return counts


def partition(ranks: Sequence[Hashable], bindings: Bindings, colours: Colours, heeded: Bools | None = None) -> Classes:
    """The coarsest equitable partition.

    ``ranks[r]`` and ``colours`` (of links) are initial: whatever makes a rank or a link different by itself;
    ``heeded`` says which rows of usage may split classes (default: all).
    """
    of_rank, of_communicator = coloured(ranks, bindings, colours, heeded)
    used = bindings.on_links[0]
    of_link, first = numbered(mixed(colours(used)) ^ carried(of_communicator[0], bindings))

    def on_links(links: Ints) -> Carried:
        return carried_by(np.searchsorted(used, links), bindings)

    return classes_of(of_rank, of_communicator, (_Found(used, of_link), used[first]), bindings, on_links)


Colours: TypeAlias = Callable[[Ints], Ints]
"""The initial colours of some links."""
Numbered = tuple[Ints, Ints]
"""The class of each of many, and the place of the first of each class."""
Carried = tuple[Ints, Ints, Ints, Floats]
"""What links carry, in columns: which link, of which communicator, which usage, how many flows."""


def coloured(
    ranks: Sequence[Hashable], bindings: Bindings, colours: Colours, heeded: Bools | None
) -> tuple[Numbered, Numbered]:
    """The classes of ranks and of communicators; ``colours`` tells the initial ones of links."""
    ranks_now = mixed(np.array(_numbered(ranks), dtype=np.int64))
    groups_now, ranks_now = _refined(ranks_now, colours, bindings, heeded)
    return numbered(ranks_now), numbered(groups_now)


def carried(of_communicator: Ints, bindings: Bindings) -> Hashes:
    """A number for what every link that is used carries of each class, heeded or not; so one of equal ones tells what
    all of them carry."""
    _, _, order, starts = bindings.on_links
    return sums(_flows(of_communicator[bindings.user], bindings)[order], starts)


def _flows(users: Ints, bindings: Bindings) -> Hashes:
    """Return a hash of every row of usage: equal for rows of equal user, place and flows."""
    uses = users * int(bindings.places.max(initial=1)) + bindings.place
    return mixed(mixed(uses, 3) ^ bits(bindings.flows), 5)


def carried_by(places: Ints, bindings: Bindings) -> Carried:
    """What some of the links that are used carry, by their places among those; nothing for -1."""
    _, _, order, starts = bindings.on_links
    there = places >= 0
    counts = np.where(there, starts[places + 1] - starts[places], 0)
    which = np.repeat(np.arange(len(places)), counts)
    rows = order[np.arange(len(which)) + np.repeat(starts[places] - (np.cumsum(counts) - counts), counts)]
    return which, bindings.user[rows], bindings.place[rows], bindings.flows[rows]


def in_array(values: Ints) -> array[int]:
    """Numbers that are Python's when they are looked at."""
    found = array("i")
    found.frombytes(np.ascontiguousarray(values, dtype=np.intc).data.cast("B"))
    return found


class _Usages(Sequence[tuple[Usage, ...]]):
    """How each communicator uses links, of those that somebody asks for."""

    def __init__(self, bindings: Bindings) -> None:
        self._bindings = bindings
        self._known: dict[int, tuple[Usage, ...]] = {}

    @overload
    def __getitem__(self, number: int) -> tuple[Usage, ...]: ...
    @overload
    def __getitem__(self, number: slice) -> list[tuple[Usage, ...]]: ...
    def __getitem__(self, number: int | slice) -> tuple[Usage, ...] | list[tuple[Usage, ...]]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        if number >= len(self):
            raise IndexError(number)
        known = self._known.get(number)
        if known is None:
            known = self._known[number] = self._bindings.usages(number)
        return known

    def __len__(self) -> int:
        return len(self._bindings)


def unfolded(num_ranks: int, bindings: Bindings, num_links: int) -> Classes:
    """Return every rank, group and link as a class: the plain run that folding must equal."""
    _, _, order, starts = bindings.on_links
    return Classes(
        of_rank=tuple(range(num_ranks)),
        of_communicator=tuple(range(len(bindings))),
        rank_representatives=tuple(range(num_ranks)),
        link_representatives=tuple(range(num_links)),
        quotient=_Usages(bindings),
        find_shared=partial(_shared, np.arange(len(bindings)), bindings, (bindings.user[order], starts)),
        links=_Found(np.arange(num_links), np.arange(num_links)),
    )


def _refined(ranks: Hashes, of_links: Colours, bindings: Bindings, heeded: Bools | None) -> tuple[Hashes, Hashes]:
    """Colours of communicators and ranks once nothing splits any more."""
    rows, times = _distinct_rows(bindings, of_links, heeded)
    used, link_of = compact(bindings.link[rows])
    user = bindings.user[rows]
    per_use = np.searchsorted(user, np.arange(len(bindings) + 1))
    how = mixed(mixed(bindings.place[rows], 11) ^ mixed(bits(bindings.flows[rows]), 13))
    by_link = ordered(link_of)
    per_link = np.searchsorted(link_of[by_link], np.arange(len(used) + 1))
    member = np.repeat(np.arange(len(bindings)), np.diff(bindings.member))
    place = np.arange(len(member)) - bindings.member[member]
    role = mixed(np.where(bindings.ordered[member], place, 0), 17)
    by_rank = ordered(bindings.rank)
    per_rank = np.searchsorted(bindings.rank[by_rank], np.arange(len(ranks) + 1))
    member_by_rank = member[by_rank]
    seen_of, how_by_link, user_by_link = bindings.rank, how[by_link], user[by_link]
    many = np.uint64(1) if bindings.many is None else bindings.many.astype(np.uint64)

    def finer(ranks: Hashes, groups: Hashes, links: Hashes, salt: int) -> tuple[Hashes, Hashes, Hashes]:
        """Each colour with those around it."""
        seen = sums(mixed(ranks[seen_of] ^ role, salt + 29) * many, bindings.member)
        loads = sums(mixed(links[link_of] ^ how, salt + 31) * times, per_use)
        groups = mixed(mixed(groups ^ mixed(seen, salt + 37)) ^ mixed(loads, salt + 41))
        links = mixed(links ^ mixed(sums(mixed(groups[user_by_link] ^ how_by_link, salt + 43), per_link), salt + 47))
        around = sums(mixed(groups[member_by_rank], salt + 53), per_rank)
        return mixed(ranks ^ mixed(around, salt + 59)), groups, links

    colours = initial = ranks, mixed(bindings.colour, 23), mixed(of_links(used), 19)
    before, salt = 0, 0
    while True:
        colours = finer(*colours, salt)
        now = sum(map(count, colours))
        if now == before:
            # Two of k colours get one number with a probability of k^2 / 2^65 a round: 3e-8 for 10^6.  So once nothing
            # splits, a round of other numbers must find nothing either, from the first colours and the last: a wrong
            # partition that passes is one in 10^15 of such runs.
            both = zip(initial, colours, strict=True)
            labels = [mixed(first, salt + 67) ^ mixed(numbered(last)[0], salt + 61) for first, last in both]
            colours = finer(labels[0], labels[1], labels[2], salt + 100)
            if sum(map(count, colours)) == now:
                return colours[1], colours[0]
            salt += 100
        before = now


def _distinct_rows(bindings: Bindings, of_links: Colours, heeded: Bools | None) -> tuple[Ints, Hashes]:
    """Return the heeded rows of one link for each set of links with equal flows of the same users, and how many each
    represents.

    The links of a path that nothing else uses are such a set.  With 16 slow GPUs, 167,000 of 2.4 million rows remain.
    """
    used, link_of, order, starts = bindings.on_links
    there = np.ones(len(link_of), dtype=bool) if heeded is None else heeded
    times = np.ones(len(link_of), dtype=np.int64) if bindings.times is None else bindings.times
    load = sums(np.where(there, _flows(bindings.user, bindings) * times.astype(np.uint64), 0)[order], starts)
    alike, first = numbered(mixed(load, 17) ^ mixed(of_links(used), 19))
    one = np.zeros(len(used), dtype=bool)
    one[first] = True
    rows = np.flatnonzero(one[link_of] & there)
    return rows, (times[rows] * np.bincount(alike)[alike[link_of[rows]]]).astype(np.uint64)


def _numbered(colours: Sequence[Hashable]) -> list[int]:
    """Colours as small integers in order of first appearance, so that the numbering never depends on a hash."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(colour, len(numbers)) for colour in colours]


def classes_of(
    ranks: Numbered,
    groups: Numbered,
    links: tuple[LinkClasses, Ints],
    bindings: Bindings,
    on_links: Callable[[Ints], Carried],
    of_all: Ints | None = None,
) -> Classes:
    """The partition; ``links`` are their classes and the first of each, ``on_links`` says what such ones carry.

    ``of_all`` has the classes of all groups, where ``groups`` are but some.
    """
    number_of, user, place_of, flows_of = on_links(links[1])
    width, size = int(bindings.places.max(initial=1)), len(links[1])
    uses, which = np.unique((groups[0][user] * width + place_of) * size + number_of, return_inverse=True)
    pairs = list(zip((uses % size).tolist(), np.bincount(which, flows_of).tolist(), strict=True)) if size else []
    begin = np.searchsorted(uses, np.arange(len(groups[1]) * width + 1) * size).tolist()
    quotient = tuple(
        tuple([tuple(pairs[begin[use] : begin[use + 1]]) for use in range(group * width, group * width + places)])
        for group, places in enumerate(bindings.places[groups[1]].tolist())
    )
    ends = np.searchsorted(number_of, np.arange(len(links[1]) + 1))
    return Classes(
        of_rank=in_array(ranks[0]),
        of_communicator=in_array(groups[0] if of_all is None else of_all),
        rank_representatives=tuple(ranks[1].tolist()),
        link_representatives=tuple(links[1].tolist()),
        quotient=quotient,
        find_shared=partial(_shared, groups[0], bindings, (user, ends)),
        links=links[0],
    )


def _shared(group_colour: Ints, bindings: Bindings, on_links: tuple[Ints, Ints]) -> tuple[bool, ...]:
    """Per communicator class: may its traffic meet another class's on some link?

    Two communicators that both keep a common member from all other communication are never under way at the same time;
    a transfer keeps its sender alone.  (Groups of one class that use the same link do everything at the same time;
    their usage counts them all.)  ``on_links`` are users link by link, and where each link's begin.
    """
    shared = [False] * (int(group_colour.max(initial=-1)) + 1)
    held_up: dict[int, frozenset[int]] = {}

    def holds(number: int) -> frozenset[int]:
        if number not in held_up:
            ranks = bindings.ranks(number)
            held_up[number] = frozenset((ranks[:1] if bindings.ordered[number] else ranks).tolist())
        return held_up[number]

    settled: set[tuple[int, int]] = set()
    for numbers in _pairs_of(on_links):
        for place, one in enumerate(numbers):
            for other in numbers[place + 1 :]:
                pair = int(group_colour[one]), int(group_colour[other])
                if pair[0] == pair[1] or pair in settled:
                    continue
                in_turn = bindings.blocking[one] and bindings.blocking[other]
                if not (in_turn and holds(one) & holds(other)):
                    shared[pair[0]] = shared[pair[1]] = True
                    settled.add(pair)
    return tuple(shared)


def _pairs_of(on_links: tuple[Ints, Ints]) -> Iterable[list[int]]:
    """The users of every link that has several."""
    users, starts = on_links
    for first, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        if end > first + 1:
            yield list(dict.fromkeys(users[first:end].tolist()))
