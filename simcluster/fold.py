"""Which ranks behave alike: one representative plays for all ranks of a class.

The coarsest equitable partition of ranks, groups and links by colour refinement: start from what makes them differ by
themselves (stage, speed, capacity), then split classes whose members see different classes around them, until nothing
splits.  Ranks of one class then have identical timelines (modelling.md I.1).  Pure; imports the plan and patterns.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from simcluster.fairness import Usage


@dataclass(frozen=True, slots=True)
class Communicator:
    """Ranks that meet (a group), or a sender and its receiver, and how their traffic uses the links.

    ``kind`` is what their ops call it ("tp", ("send", 3)); ``usage`` and ``latency`` are one pattern's; ``share`` is
    the part of the size one flow carries in a round.
    """

    kind: Hashable
    ranks: tuple[int, ...]
    usages: tuple[Usage, ...]
    nature: Hashable  # everything else that must be equal for two communicators to take equal time
    blocking: bool = False  # do all its ops hold up their rank's main lane?


@dataclass(frozen=True)
class Classes:
    """The partition: class of each rank and communicator; the representative (lowest number) of each class of ranks and
    links.  Links of a class are looked at through one of them."""

    of_rank: tuple[int, ...]
    of_communicator: tuple[int, ...]
    rank_representatives: tuple[int, ...]
    link_representatives: tuple[int, ...]
    quotient: tuple[tuple[Usage, ...], ...]  # per communicator class: its usages with all its members, on link classes
    shared: tuple[bool, ...]  # per communicator class: may another class be on one of its links at the same time?
    link_members: tuple[tuple[int, ...], ...]  # all links of every class

    def multiplicity(self) -> list[int]:
        """Ranks in every class."""
        counts = [0] * len(self.rank_representatives)
        for number in self.of_rank:
            counts[number] += 1
        return counts


def fold(ranks: Sequence[Hashable], communicators: Sequence[Communicator], links: Sequence[Hashable]) -> Classes:
    """The coarsest equitable partition.

    ``ranks[r]`` and ``links[l]`` are initial colours: whatever makes a rank or a link different by itself.
    """
    members, users = _neighbours(len(ranks), communicators)
    used = list(users)
    rank_colour = _numbered(ranks)
    link_colour = dict(zip(used, _numbered([links[link] for link in used]), strict=True))
    group_colour = _numbered([(each.kind, each.nature) for each in communicators])
    while True:
        groups = _numbered(
            [
                (group_colour[number], _ranks_seen(each, rank_colour), _links_seen(each, link_colour))
                for number, each in enumerate(communicators)
            ]
        )
        by_link = _numbered(
            [(link_colour[link], tuple(sorted((groups[n], place, flows) for n, place, flows in users[link])))
             for link in used]
        )  # fmt: skip
        by_rank = _numbered(
            [(colour, tuple(sorted(groups[n] for n in members[rank]))) for rank, colour in enumerate(rank_colour)]
        )
        before = max(group_colour, default=0), max(link_colour.values(), default=0), max(rank_colour)
        group_colour, rank_colour, link_colour = groups, by_rank, dict(zip(used, by_link, strict=True))
        if before == (max(groups, default=0), max(by_link, default=0), max(by_rank)):
            return _classes(rank_colour, group_colour, link_colour, communicators, users)


def unfolded(num_ranks: int, communicators: Sequence[Communicator], num_links: int) -> Classes:
    """Every rank, group and link a class of its own: the plain run that folding must equal."""
    _, users = _neighbours(num_ranks, communicators)
    own = list(range(len(communicators)))
    return Classes(
        of_rank=tuple(range(num_ranks)),
        of_communicator=tuple(range(len(communicators))),
        rank_representatives=tuple(range(num_ranks)),
        link_representatives=tuple(range(num_links)),
        quotient=tuple(each.usages for each in communicators),
        shared=_shared(own, communicators, users.values()),
        link_members=tuple((link,) for link in range(num_links)),
    )


def _neighbours(
    num_ranks: int, communicators: Sequence[Communicator]
) -> tuple[list[list[int]], dict[int, list[tuple[int, int, float]]]]:
    """Communicators of each rank, and (communicator, usage number, flows) on each link that is used."""
    members: list[list[int]] = [[] for _ in range(num_ranks)]
    users: dict[int, list[tuple[int, int, float]]] = {}
    for number, each in enumerate(communicators):
        for rank in each.ranks:
            members[rank].append(number)
        for place, usage in enumerate(each.usages):
            for link, flows in usage:
                users.setdefault(link, []).append((number, place, flows))
    return members, users


def _links_seen(each: Communicator, link_colour: Mapping[int, int]) -> tuple[tuple[tuple[int, float], ...], ...]:
    return tuple(tuple(sorted((link_colour[link], flows) for link, flows in usage)) for usage in each.usages)


def _ranks_seen(each: Communicator, rank_colour: Sequence[int]) -> tuple[int, ...]:
    """Colours of a communicator's ranks: of a transfer in order (sender, receiver), of a group as a multiset."""
    colours = tuple(rank_colour[rank] for rank in each.ranks)
    return colours if isinstance(each.kind, tuple) else tuple(sorted(colours))


def _numbered(colours: Sequence[Hashable]) -> list[int]:
    """Colours as small integers in order of first appearance, so that the numbering never depends on a hash."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(colour, len(numbers)) for colour in colours]


def _classes(
    rank_colour: Sequence[int],
    group_colour: Sequence[int],
    link_colour: Mapping[int, int],
    communicators: Sequence[Communicator],
    users: Mapping[int, Sequence[tuple[int, int, float]]],
) -> Classes:
    link_members: list[list[int]] = [[] for _ in range(max(link_colour.values(), default=-1) + 1)]
    for link, colour in link_colour.items():
        link_members[colour].append(link)
    link_representatives = [members[0] for members in link_members]
    group_representatives = _first(group_colour, range(len(communicators)))
    # one link of a class, looked at closely, tells what every link of the class carries for each communicator class
    load: dict[tuple[int, int], dict[int, float]] = {}
    for number, link in enumerate(link_representatives):
        for user, place, flows in users[link]:
            on_link = load.setdefault((group_colour[user], place), {})
            on_link[number] = on_link.get(number, 0.0) + flows
    quotient = tuple(
        tuple(tuple(sorted(load.get((group, place), {}).items())) for place in range(len(communicators[first].usages)))
        for group, first in enumerate(group_representatives)
    )
    return Classes(
        of_rank=tuple(rank_colour),
        of_communicator=tuple(group_colour),
        rank_representatives=tuple(_first(rank_colour, range(len(rank_colour)))),
        link_representatives=tuple(link_representatives),
        quotient=quotient,
        shared=_shared(group_colour, communicators, [users[link] for link in link_representatives]),
        link_members=tuple(map(tuple, link_members)),
    )


def _shared(
    group_colour: Sequence[int],
    communicators: Sequence[Communicator],
    on_links: Iterable[Sequence[tuple[int, int, float]]],
) -> tuple[bool, ...]:
    """Per communicator class: may its traffic meet another class's on some link?

    Two communicators that both hold up the main lane of a common member are never under way at the same time; a
    transfer holds up its sender alone.  (Groups of one class that use the same link do everything at the same time;
    their usage counts them all.)
    """
    shared = [False] * (max(group_colour, default=-1) + 1)
    held_up = [frozenset(each.ranks[:1] if isinstance(each.kind, tuple) else each.ranks) for each in communicators]
    settled: set[tuple[int, int]] = set()
    for users in on_links:
        numbers = list(dict.fromkeys(number for number, _, _ in users))
        for place, one in enumerate(numbers):
            for other in numbers[place + 1 :]:
                pair = group_colour[one], group_colour[other]
                if pair[0] == pair[1] or pair in settled:
                    continue
                in_turn = communicators[one].blocking and communicators[other].blocking
                if not (in_turn and held_up[one] & held_up[other]):
                    shared[pair[0]] = shared[pair[1]] = True
                    settled.add(pair)
    return tuple(shared)


def _first(colours: Sequence[int], names: Sequence[int]) -> list[int]:
    first: dict[int, int] = {}
    for colour, name in zip(colours, names, strict=True):
        first.setdefault(colour, name)
    return [first[colour] for colour in range(len(first))]
