"""Classes of equal ranks, groups and links: the coarsest equitable partition of a job, a window or its cells.

Class numbers are the same for each of these. Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import combinations
from typing import TypeAlias

import numpy as np

from simcluster.base.arrays import (
    Floats,
    Hashes,
    Int32s,
    Ints,
    Numbers,
    concat_ranges,
    count_distinct,
    float_bits,
    hash64,
    renumber,
    run_starts,
    sort_order,
    sum_segments,
)
from simcluster.base.link_columns import PerLink
from simcluster.symmetry.quotient import NotAlikeError, Quotient
from simcluster.traffic.fairness import Usage
from simcluster.traffic.incidence import Bindings, Load
from simcluster.traffic.link_usage import ClusterWidePattern

Colours: TypeAlias = Callable[[Ints], Ints]
"""The initial colours of some links."""
Numbered = tuple[Ints, Ints]
"""The class of each of many, and the place of the first of each class."""


def hash_link_loads(users: Ints, bindings: Bindings, times: Ints | None = None) -> Hashes:
    """Return a hash of every used link's load: the flows of these ``users`` of usage rows, counted ``times`` times."""
    _, _, order, starts = bindings.on_links
    uses = users * int(bindings.places.max(initial=1)) + bindings.place
    flows = hash64(hash64(uses, 3) ^ float_bits(bindings.flows), 5)
    return sum_segments((flows if times is None else flows * times.astype(np.uint64))[order], starts)


def refine_colours(ranks: Ints, bindings: Bindings, of_links: Colours) -> tuple[Numbered, Numbered]:
    """Refine initial colours into classes of ranks and of communicators until nothing splits any more.

    ``ranks`` and ``of_links`` are initial colours: whatever makes a rank or a link different alone. Communicators
    are refined; colours around ranks and links follow from them.
    """
    used, link_of, by_link, per_link = bindings.on_links
    how = hash64(hash64(bindings.place, 11) ^ hash64(float_bits(bindings.flows), 13))
    how_by_link, user_by_link = how[by_link], bindings.user[by_link]
    member = np.repeat(np.arange(len(bindings)), np.diff(bindings.member))
    role = hash64(np.where(bindings.ordered[member], concat_ranges(np.diff(bindings.member)), 0), 17)
    by_rank = sort_order(bindings.rank)
    per_rank = np.searchsorted(bindings.rank[by_rank], np.arange(len(ranks) + 1))
    member_by_rank = member[by_rank]
    many, times = (np.uint64(1) if each is None else each.astype(np.uint64) for each in (bindings.many, bindings.times))
    initial_ranks, initial_links = hash64(ranks), hash64(of_links(used), 19)

    def finer(groups: Hashes, salt: int) -> tuple[Hashes, Hashes]:
        """Return the colours of ranks by their groups, and of groups by their ranks and links."""
        users = sum_segments(hash64(groups[user_by_link] ^ how_by_link, salt + 43), per_link)
        links = hash64(initial_links ^ hash64(users, salt + 47), salt + 53)
        ranks = hash64(
            initial_ranks ^ hash64(sum_segments(hash64(groups[member_by_rank], salt + 53), per_rank), salt + 59)
        )
        seen = sum_segments(hash64(ranks[bindings.rank] ^ role, salt + 29) * many, bindings.member)
        loads = sum_segments(hash64(links[link_of] ^ how, salt + 31) * times, bindings.use)
        return ranks, hash64(hash64(groups ^ hash64(seen, salt + 37)) ^ hash64(loads, salt + 41))

    colours = initial = hash64(bindings.colour, 23)
    before, salt = 0, 0
    while True:
        colours = finer(colours, salt)[1]
        now = count_distinct(colours)
        if now == before:
            # Two of k colours get one number with a probability of k^2 / 2^65 a round: 3e-8 for 10^6.  So once nothing
            # splits, a round of other numbers must find nothing either, from the first colours and the last: a wrong
            # partition that passes is one in 10^15 of such runs.
            salt += 100
            of_ranks, colours = finer(hash64(initial, salt + 67) ^ hash64(renumber(colours)[0], salt + 61), salt)
            if count_distinct(colours) == now:
                return renumber(of_ranks), renumber(colours)
        before = now


Carried = tuple[Ints, Ints, Ints, Floats]
"""What links carry, in columns: which link, of which communicator, which usage, how many flows."""


@dataclass(frozen=True)
class Classes:
    """Partition of a job into classes: the class of each rank and communicator, and a representative of each class.

    The representative of ranks and links is the lowest number. ``quotient`` has for each class of communicators its
    usages with all its members, on classes of links; ``links`` has the class of each, -1 where nothing uses it.
    """

    of_rank: Sequence[int]
    of_communicator: Sequence[int]
    rank_representatives: tuple[int, ...]
    link_representatives: tuple[int, ...]
    quotient: Sequence[tuple[Usage, ...]]
    links: PerLink = field(compare=False, repr=False)

    def of(self, links: Ints) -> Int32s:
        """Return the classes of some links."""
        return self.links.of(links)

    @cached_property
    def used(self) -> Ints:
        """Numbers of the links that are used, ascending."""
        return np.flatnonzero(self.links.all >= 0)

    @cached_property
    def of_link(self) -> Ints:
        """Class of each used link."""
        return self.links.all[self.used].astype(np.int64)

    def multiplicity(self) -> list[int]:
        """Return the number of ranks in every class."""
        return [*np.bincount(self.of_rank, minlength=len(self.rank_representatives)).tolist()]

    def meeting(self, ranks: Ints) -> tuple[int, ...]:
        """Return the classes of the ranks that meet, each once, in their order."""
        own = np.asarray(self.of_rank)[ranks]
        return tuple(dict.fromkeys(own[run_starts(own)].tolist()))


def trivial_classes(num_ranks: int, bindings: Bindings, num_links: int) -> Classes:
    """Return the trivial partition, with every rank, group and link in a separate class."""
    return Classes(
        of_rank=_int_array(np.arange(num_ranks)),
        of_communicator=_int_array(np.arange(len(bindings))),
        rank_representatives=tuple(range(num_ranks)),
        link_representatives=tuple(range(num_links)),
        quotient=[bindings.usages(number) for number in range(len(bindings))],
        links=PerLink.uncompressed(np.arange(num_links, dtype=np.int32)),
    )


def find_classes(ranks: Ints, seen: Quotient, bindings: Bindings, colours: Colours, num_links: int) -> Classes:
    """Return the coarsest equitable partition of ranks, communicators and links.

    ``ranks`` (of those seen) and ``colours`` (of links) are initial: whatever makes a rank or a link different by
    itself. ``bindings`` are the communicators that are ``seen``.
    """
    of_rank, of_seen = refine_colours(ranks, bindings, colours)
    become = seen.become or PerLink.uncompressed(np.arange(num_links, dtype=np.int32))
    links, first = _classify_links(bindings, of_seen[0], become, colours, _code_apart_loads(bindings.apart, num_links))
    return Classes(
        of_rank=_int_array(of_rank[0][seen.place[seen.rank]]),
        of_communicator=_int_array(of_seen[0].astype(np.int32)[bindings.of_group]),
        rank_representatives=tuple(seen.ranks[of_rank[1]].tolist()),
        link_representatives=tuple(first.tolist()),
        quotient=_quotient_usages(bindings, of_seen, _link_contents(first, become.of(first), bindings)),
        links=links,
    )


def _int_array(values: Numbers) -> array[int]:
    return array("i", values.astype(np.intc).tobytes())


def _classify_links(
    bindings: Bindings, of_group: Ints, become: PerLink, colours: Colours, code: PerLink | None
) -> tuple[PerLink, Ints]:
    """Return the class of each link, by the loads on its image in the window, and each class's first link.

    ``code`` is the load by groups that are kept apart.
    """
    there = bindings.on_links[0]
    if (become.of(there) != there).any():
        raise NotAlikeError
    window = become.distinct
    window = window[become.of(window) == window]
    loads, idle = hash64(colours(window)), np.ones(len(window), dtype=bool)
    busy = np.searchsorted(window, there)
    loads[busy] ^= hash_link_loads(of_group[bindings.user], bindings)
    idle[busy] = False
    of_load, one = renumber(loads)
    sort = np.append(of_load, len(one)).astype(np.int32)  # the last: of links that are not used
    kind, amounts = become.positions_in(window).apply(sort.take), 1
    if code is not None:
        amounts = code.maximum + 1
        kind = kind.combine(code)
    first = kind.first_links((len(one) + 1) * amounts)
    if (first[len(one) * amounts + 1 :] >= 0).any():  # a link without a counterpart that somebody uses
        raise NotAlikeError
    unused = np.zeros((len(one) + 1, amounts), dtype=bool)
    unused[:, 0] = [*idle[one].tolist(), True]
    kinds = np.flatnonzero((first >= 0) & ~unused.ravel())
    kinds = kinds[np.argsort(first[kinds])]
    number = np.full(len(first), -1, dtype=np.int32)
    number[kinds] = np.arange(len(kinds))
    return kind.apply(number.take), first[kinds]


def _code_apart_loads(apart: Mapping[int, Sequence[Load]], num_links: int) -> PerLink | None:
    """Return a number per link, equal for equal loads by the groups that are kept apart; 0 for no load."""
    code: PerLink | None = None
    for use in (use for uses in apart.values() for use in uses):
        if isinstance(use, ClusterWidePattern):
            amount = use.load.ranks
        else:
            flows = np.zeros(num_links)
            flows[use.link] = use.flows
            amount = PerLink.uncompressed(flows).ranks
        code = amount if code is None else code.combine(amount).ranks
    return code


def _link_contents(links: Ints, become: Numbers, bindings: Bindings) -> Carried:
    used, _, order, starts = bindings.on_links
    at = np.searchsorted(used, become)
    there = np.flatnonzero(np.append(used, -1)[at] == become)
    begin, end = starts[at[there]], starts[at[there] + 1]
    rows = order[np.repeat(begin, end - begin) + concat_ranges(end - begin)]
    found = [(np.repeat(there, end - begin), bindings.user[rows], bindings.place[rows], bindings.flows[rows])]
    for number, uses in bindings.apart.items():
        for place, use in enumerate(uses):
            flows = use.on_links(links)
            which = np.flatnonzero(flows)
            found.append((which, np.full(len(which), number), np.full(len(which), place), flows[which]))
    which, user, places, flows = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.argsort(which, kind="stable")
    return which[order], user[order], places[order], flows[order]


def _quotient_usages(bindings: Bindings, of_group: Numbered, on_links: Carried) -> Sequence[tuple[Usage, ...]]:
    number_of, user, place_of, flows_of = on_links
    width, size = int(bindings.places.max(initial=1)), int(number_of.max(initial=0)) + 1
    uses, which = np.unique((of_group[0][user] * width + place_of) * size + number_of, return_inverse=True)
    pairs = list(zip((uses % size).tolist(), np.bincount(which, flows_of).tolist(), strict=True))
    begin = np.searchsorted(uses, np.arange(len(of_group[1]) * width + 1) * size).tolist()
    return tuple(
        tuple([tuple(pairs[begin[use] : begin[use + 1]]) for use in range(group * width, group * width + places)])
        for group, places in enumerate(bindings.places[of_group[1]].tolist())
    )


def find_shared(classes: Classes, bindings: Bindings) -> tuple[bool, ...]:
    """Return for each class of communicators whether two of its members may share a link at the same time.

    Two communicators that both keep a common member from all other communication are never in flight at the same time;
    a transfer keeps its sender alone. (Groups of one class that use the same link do everything at the same time; their
    usage counts them all.) Nor are those apart, unless some communication keeps no rank.
    """
    shared, of_group = [False] * len(classes.quotient), classes.of_communicator
    for number in bindings.apart:
        shared[of_group[number]] = not bindings.blocking.all()

    @cache
    def kept(number: int) -> frozenset[int]:
        """Return the ranks that a communicator keeps from all other communication."""
        ranks = bindings.ranks(number)[: 1 if bindings.ordered[number] else None]
        return frozenset(ranks.tolist() if bindings.blocking[number] else ())

    links = np.array(classes.link_representatives, dtype=np.int64)
    which, user, *_ = _link_contents(links, links, replace(bindings, apart={}))
    for numbers in np.split(user, np.searchsorted(which, np.arange(1, len(links)))):
        for one, other in combinations(dict.fromkeys(numbers.tolist()), 2):
            pair = of_group[one], of_group[other]
            if pair[0] != pair[1] and not (shared[pair[0]] and shared[pair[1]]) and not kept(one) & kept(other):
                shared[pair[0]] = shared[pair[1]] = True
    return tuple(shared)
