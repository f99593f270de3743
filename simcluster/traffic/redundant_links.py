"""Redundant links: max-min fair rates are decided on all others, so only those are looked at when something changes.

If everything that uses a link uses another one by as many flows, and that is as narrow, then the level of the first is
never lower.  While both have the same users, their levels come out of the same steps, or of the same with more to share
out; while the other has more, what these take is far more than what is ever rounded.  The same holds where each user
fills the other link by more (``_MARGIN``).  So rates are the same to the bit without the first.  In Llama 3 405B on
131,072 GPUs an activity crosses 27 classes of links and feels 2 of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from simcluster.traffic.fairness import Usage

_MARGIN = 1.0 + 1e-9
"""How much fuller is fuller, whatever is rounded on the way."""


def felt(
    quotient: Sequence[Sequence[Usage]], capacity: Sequence[float], lone: Collection[int]
) -> dict[tuple[int, Usage], Usage]:
    """Of every usage of every class of groups what may decide a rate.

    ``quotient`` lists all that there will be by class, ``capacity`` is B/s per link and does not change; beside
    classes that are ``lone`` nothing else is ever under way.
    """
    found = {(number, usage): narrowest(usage, capacity) for number in lone for usage in quotient[number]}
    several = [(number, usage) for number, own in enumerate(quotient) if number not in lone for usage in own]
    all_usages = list(dict.fromkeys(usage for _, usage in several))
    users: dict[int, dict[int, float]] = {}
    for number, usage in enumerate(all_usages):
        for link, flows in usage:
            users.setdefault(link, {})[number] = flows
    least: dict[tuple[tuple[int, float], ...], int] = {}
    for link, flows_of in users.items():
        name = tuple(flows_of.items())
        if name not in least or capacity[link] < capacity[least[name]]:
            least[name] = link
    left = dict.fromkeys(least.values())
    beside = [[link for link, _ in usage if link in left] for usage in all_usages]
    for link in list(left):
        fewest = min(users[link], key=lambda number: len(beside[number]))
        if any(_fuller(users[other], capacity[other], users[link], capacity[link]) for other in beside[fewest]):
            del left[link]
    kept = {usage: tuple([pair for pair in usage if pair[0] in left]) for usage in all_usages}
    return found | {(number, usage): kept[usage] for number, usage in several}


def narrowest(usage: Usage, capacity: Sequence[float]) -> Usage:
    """What decides the rate of an activity beside which nothing else is under way."""
    return (min(usage, key=lambda pair: capacity[pair[0]] / pair[1]),) if usage else ()


def _fuller(other: dict[int, float], wide: float, users: dict[int, float], narrow: float) -> bool:
    """Is the other link, ``wide`` B/s, as full of each of the ``users`` as this one, and of others besides, or fuller
    of each?"""
    if len(other) < len(users):
        return False
    if wide <= narrow and len(other) > len(users) and all(other.get(each) == flows for each, flows in users.items()):
        return True
    return all(other.get(each, 0.0) * narrow > _MARGIN * flows * wide for each, flows in users.items())
