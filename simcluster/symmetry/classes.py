"""Classes of equal ranks, groups and links of a job, found by colour refinement (coarsest equitable partition).

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
    Ints,
    Numbers,
    concat_ranges,
    count_distinct_hashes,
    float_bits,
    hash64,
    number_by_first_use,
    run_starts,
    sort_order,
    sum_segments,
)
from simcluster.base.link_columns import LinkColumn
from simcluster.symmetry.quotient import JobQuotient, NotSymmetricError
from simcluster.traffic.communicator_usage import CommunicationLoad, CommunicatorLinkUsage
from simcluster.traffic.fairness import Usage
from simcluster.traffic.link_usage import ClusterWidePattern

Colours: TypeAlias = Callable[[Ints], Ints]
"""Function that returns the initial colours of these links."""
ClassIds = tuple[Ints, Ints]
"""Class number of each item, and the index of the first item of each class."""


def hash_link_loads(users: Ints, usage: CommunicatorLinkUsage) -> Hashes:
    """Return a hash of each used link's load, equal for equal flows by communicators of equal colour."""
    _, _, order, starts = usage.rows_by_link
    uses = users * int(usage.places.max(initial=1)) + usage.place
    flows = hash64(hash64(uses, 3) ^ float_bits(usage.flows), 5)
    return sum_segments(flows[order], starts)


def refine_colours(ranks: Ints, usage: CommunicatorLinkUsage, of_links: Colours) -> tuple[ClassIds, ClassIds]:
    """Split classes of ranks and communicators by the classes of their neighbours until no class splits further.

    ``ranks`` and ``of_links`` are initial colours: whatever makes a rank or a link different alone. Communicators
    are refined; colours around ranks and links follow from them.
    """
    used, link_of, by_link, per_link = usage.rows_by_link
    how = hash64(hash64(usage.place, 11) ^ hash64(float_bits(usage.flows), 13))
    how_by_link, user_by_link = how[by_link], usage.row_communicators[by_link]
    member = np.repeat(np.arange(len(usage)), np.diff(usage.member))
    role = hash64(np.where(usage.ordered[member], concat_ranges(np.diff(usage.member)), 0), 17)
    by_rank = sort_order(usage.rank)
    per_rank = np.searchsorted(usage.rank[by_rank], np.arange(len(ranks) + 1))
    group_by_rank = member[by_rank]
    many, times = (np.uint64(1) if each is None else each.astype(np.uint64) for each in (usage.many, usage.times))
    own_ranks, own_links = hash64(ranks), hash64(of_links(used), 19)

    def refine_once(groups: Hashes, salt: int) -> tuple[Hashes, Hashes]:
        """Return new colours of ranks (from their groups) and of groups (from their ranks and links)."""
        users = sum_segments(hash64(groups[user_by_link] ^ how_by_link, salt + 43), per_link)
        links = hash64(own_links ^ hash64(users, salt + 47), salt + 53)
        ranks = hash64(own_ranks ^ hash64(sum_segments(hash64(groups[group_by_rank], salt + 53), per_rank), salt + 59))
        seen = sum_segments(hash64(ranks[usage.rank] ^ role, salt + 29) * many, usage.member)
        loads = sum_segments(hash64(links[link_of] ^ how, salt + 31) * times, usage.use)
        return ranks, hash64(hash64(groups ^ hash64(seen, salt + 37)) ^ hash64(loads, salt + 41))

    colours = initial = hash64(usage.colour, 23)
    before, salt = 0, 0
    while True:
        colours = refine_once(colours, salt)[1]
        now = count_distinct_hashes(colours)
        if now == before:
            # Two of k colours get one number with a probability of k^2 / 2^65 a round: 3e-8 for 10^6.  So once nothing
            # splits, a round of other numbers, from the first colours and the last, must find nothing either: a wrong
            # partition that passes is one in 10^15 of such runs.
            salt += 100
            both = hash64(initial, salt + 67) ^ hash64(number_by_first_use(colours)[0], salt + 61)
            of_ranks, colours = refine_once(both, salt)
            if count_distinct_hashes(colours) == now:
                return number_by_first_use(of_ranks), number_by_first_use(colours)
        before = now


LinkFlows = tuple[Ints, Ints, Ints, Floats]
"""Traffic on links as arrays: link, communicator, its usage (traffic pattern), and number of flows."""


@dataclass(frozen=True)
class EquivalenceClasses:
    """Equivalence classes of a job's ranks, communicators and links, with one representative per class.

    The representative of ranks and links is the lowest number. ``quotient`` has for each class of communicators its
    usages with all its members, on classes of links; ``links`` has the class of each, -1 where nothing uses it.
    """

    of_rank: Sequence[int]
    of_communicator: Sequence[int]
    rank_representatives: tuple[int, ...]
    link_representatives: tuple[int, ...]
    quotient: Sequence[tuple[Usage, ...]]
    links: LinkColumn = field(compare=False, repr=False)

    @cached_property
    def used_links(self) -> Ints:
        """Sorted numbers of the links that carry traffic."""
        return np.flatnonzero(self.links.all_values >= 0)

    @cached_property
    def used_link_classes(self) -> Ints:
        """Class number of each link that carries traffic."""
        return self.links.all_values[self.used_links].astype(np.int64)

    def count_ranks_per_class(self) -> list[int]:
        """Return the number of ranks in each class."""
        return [*np.bincount(self.of_rank, minlength=len(self.rank_representatives)).tolist()]

    def classes_of_ranks(self, ranks: Ints) -> tuple[int, ...]:
        """Return the distinct classes of a communicator's ranks, ordered by first occurrence."""
        own = np.asarray(self.of_rank)[ranks]
        return tuple(dict.fromkeys(own[run_starts(own)].tolist()))


def trivial_classes(num_ranks: int, usage: CommunicatorLinkUsage, num_links: int) -> EquivalenceClasses:
    """Return the trivial partition: each rank, communicator and link forms a separate class."""
    return EquivalenceClasses(
        of_rank=_to_int_array(np.arange(num_ranks)),
        of_communicator=_to_int_array(np.arange(len(usage))),
        rank_representatives=tuple(range(num_ranks)),
        link_representatives=tuple(range(num_links)),
        quotient=[usage.link_usages(number) for number in range(len(usage))],
        links=LinkColumn.from_array(np.arange(num_links, dtype=np.int32)),
    )


def find_classes(
    ranks: Ints, window: JobQuotient, usage: CommunicatorLinkUsage, colours: Colours, num_links: int
) -> EquivalenceClasses:
    """Return classes of equal ranks, communicators and links: the coarsest equitable partition.

    ``ranks`` (of those seen) and ``colours`` (of links) are initial: whatever makes a rank or a link different by
    itself. ``usage`` are the communicators that are ``window``.
    """
    of_rank, of_seen = refine_colours(ranks, usage, colours)
    onto = window.link_image or LinkColumn.from_array(np.arange(num_links, dtype=np.int32))
    links, one = _classify_links(usage, of_seen[0], onto, colours, _separate_load_numbers(usage.apart, num_links))
    return EquivalenceClasses(
        of_rank=_to_int_array(of_rank[0][window.window_positions[window.rank]]),
        of_communicator=_to_int_array(of_seen[0].astype(np.int32)[usage.of_group]),
        rank_representatives=tuple(window.ranks[of_rank[1]].tolist()),
        link_representatives=tuple(one.tolist()),
        quotient=_usages_of_classes(usage, of_seen, _list_link_flows(one, onto.values_at(one), usage)),
        links=links,
    )


def _to_int_array(values: Numbers) -> array[int]:
    return array("i", values.astype(np.intc).tobytes())


def _classify_links(
    usage: CommunicatorLinkUsage, group_class: Ints, image: LinkColumn, colours: Colours, extra_load: LinkColumn | None
) -> tuple[LinkColumn, Ints]:
    """Assign each link a class by the load on its equivalent in the window; return classes and their first links.

    ``extra_load`` is the load by groups that are kept apart.
    """
    there = usage.rows_by_link[0]
    if (image.values_at(there) != there).any():
        raise NotSymmetricError
    window = image.distinct_links
    window = window[image.values_at(window) == window]
    loads, idle = hash64(colours(window)), np.ones(len(window), dtype=bool)
    busy = np.searchsorted(window, there)
    loads[busy] ^= hash_link_loads(group_class[usage.row_communicators], usage)
    idle[busy] = False
    of_load, one = number_by_first_use(loads)
    sort = np.append(of_load, len(one)).astype(np.int32)  # the last: of links that are not used
    kind, amounts = image.replace_by_positions(window).map_values(sort.take), 1
    if extra_load is not None:
        amounts = extra_load.largest_value + 1
        kind = kind.combine_with(extra_load)
    first = kind.first_link_of_each((len(one) + 1) * amounts)
    if (first[len(one) * amounts + 1 :] >= 0).any():  # a link without a counterpart that somebody uses
        raise NotSymmetricError
    unused = np.zeros((len(one) + 1, amounts), dtype=bool)
    unused[:, 0] = [*idle[one].tolist(), True]
    kinds = np.flatnonzero((first >= 0) & ~unused.ravel())
    kinds = kinds[np.argsort(first[kinds])]
    number = np.full(len(first), -1, dtype=np.int32)
    number[kinds] = np.arange(len(kinds))
    return kind.map_values(number.take), first[kinds]


def _separate_load_numbers(loads: Mapping[int, Sequence[CommunicationLoad]], num_links: int) -> LinkColumn | None:
    """Return a number per link, equal for equal loads by cluster-wide groups; 0 for links without such a load."""
    code: LinkColumn | None = None
    for use in (use for uses in loads.values() for use in uses):
        if isinstance(use, ClusterWidePattern):
            amount = use.load.dense_order
        else:
            flows = np.zeros(num_links)
            flows[use.links] = use.flows
            amount = LinkColumn.from_array(flows).dense_order
        code = amount if code is None else code.combine_with(amount).dense_order
    return code


def _list_link_flows(links: Ints, image: Numbers, usage: CommunicatorLinkUsage) -> LinkFlows:
    used, _, order, starts = usage.rows_by_link
    at = np.searchsorted(used, image)
    there = np.flatnonzero(np.append(used, -1)[at] == image)
    begin, end = starts[at[there]], starts[at[there] + 1]
    row = order[np.repeat(begin, end - begin) + concat_ranges(end - begin)]
    found = [(np.repeat(there, end - begin), usage.row_communicators[row], usage.place[row], usage.flows[row])]
    for number, uses in usage.apart.items():
        for place, use in enumerate(uses):
            flows = use.flows_on_links(links)
            which = np.flatnonzero(flows)
            found.append((which, np.full(len(which), number), np.full(len(which), place), flows[which]))
    which, user, places, flows = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.argsort(which, kind="stable")
    return which[order], user[order], places[order], flows[order]


def _usages_of_classes(usage: CommunicatorLinkUsage, kinds: ClassIds, flows: LinkFlows) -> Sequence[tuple[Usage, ...]]:
    number_of, user, place_of, flows_of = flows
    width, size = int(usage.places.max(initial=1)), int(number_of.max(initial=0)) + 1
    uses, which = np.unique((kinds[0][user] * width + place_of) * size + number_of, return_inverse=True)
    pairs = list(zip((uses % size).tolist(), np.bincount(which, flows_of).tolist(), strict=True))
    begin = np.searchsorted(uses, np.arange(len(kinds[1]) * width + 1) * size).tolist()
    return tuple(
        tuple([tuple(pairs[begin[use] : begin[use + 1]]) for use in range(group * width, group * width + places)])
        for group, places in enumerate(usage.places[kinds[1]].tolist())
    )


def find_link_sharing(classes: EquivalenceClasses, usage: CommunicatorLinkUsage) -> tuple[bool, ...]:
    """Return for each class of communicators whether it may use a link at the same time as another class.

    Two communicators that both keep a common member from all other communication are never in flight at the same time;
    a transfer keeps its sender alone. (Groups of one class that use the same link do everything at the same time; their
    usage counts them all.) Nor are those apart, unless some communication keeps no rank.
    """
    shared, of_group = [False] * len(classes.quotient), classes.of_communicator
    for number in usage.apart:
        shared[of_group[number]] = not usage.blocking.all()

    @cache
    def ranks_of(number: int) -> frozenset[int]:
        """Return the ranks that run no other communication while this communicator is active."""
        ranks = usage.member_ranks(number)[: 1 if usage.ordered[number] else None]
        return frozenset(ranks.tolist() if usage.blocking[number] else ())

    links = np.array(classes.link_representatives, dtype=np.int64)
    which, user, *_ = _list_link_flows(links, links, replace(usage, apart={}))
    for numbers in np.split(user, np.searchsorted(which, np.arange(1, len(links)))):
        for one, other in combinations(dict.fromkeys(numbers.tolist()), 2):
            pair = of_group[one], of_group[other]
            if pair[0] != pair[1] and not (shared[pair[0]] and shared[pair[1]]) and not ranks_of(one) & ranks_of(other):
                shared[pair[0]] = shared[pair[1]] = True
    return tuple(shared)
