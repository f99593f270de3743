"""Trees of switches that add up or copy what passes: the way of every GPU to one switch above all of them, and back.

They meet in the switch of the fabric that is nearest to all; each leaves its machine as it would towards another one of
the group, and from the leaf on all follow one tree.  (GPUs on one NVSwitch meet in it: ``Wiring.switch_ways``.)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from simcluster.base.errors import InputError
from simcluster.topology.access_paths import Spread, Ways
from simcluster.topology.routing import Router


def meeting_paths(
    router: Router, links: Sequence[tuple[str, str]], gpus: Sequence[int], hosts: Sequence[int], turn: int
) -> list[list[str]]:
    """Nodes from each GPU, on the machine that ``hosts`` says, to the switch in which all of them meet.

    Of equally near switches it is number ``turn`` (modulo how many there are, in natural order of names).  InputError
    when there is none.
    """
    exits = []
    for gpu, host in zip(gpus, hosts, strict=True):
        other = next((other for other, at in zip(gpus, hosts, strict=True) if at != host), None)
        if other is None:
            raise InputError(f"{router.gpus[gpu]} and the others of its group share no switch that could reduce")
        exits.append([router.gpus[gpu]])  # to the first switch of the fabric, on its route to another machine
        for link in router.route(gpu, other):
            exits[-1].append(links[link][1])
            if exits[-1][-1] in router.ways.switches:
                break
    top = _above(router.ways, list(dict.fromkeys(path[-1] for path in exits)), turn)
    return [path + _up(router.ways, path[-1], top) for path in exits]


def there_and_back(router: Router, path: Sequence[str]) -> tuple[Spread, Spread]:
    """The links along these nodes, and those back."""
    index = router.link_index
    pairs = [list(itertools.pairwise(way)) for way in (path, path[::-1])]
    for a, b in itertools.chain(*pairs):
        if (a, b) not in index:
            raise InputError(f"no link from {a} to {b}: what is reduced in a switch comes back the way it went")
    up, down = (tuple([(index[pair], 1.0) for pair in way]) for way in pairs)
    return up, down


def _above(ways: Ways, leaves: Sequence[str], turn: int) -> str:
    """The switch to which the way from the farthest leaf is shortest; among those the nearest to all."""
    cost: dict[str, tuple[int, int]] = {}
    hops = [ways.hops_across(((leaf, 0),)) for leaf in leaves]
    for switch in hops[0]:
        if all(switch in each for each in hops):
            distances = [each[switch] for each in hops]
            cost[switch] = max(distances), sum(distances)
    if not cost:
        raise InputError(f"the switches {leaves[0]} and {leaves[-1]} have no switch above both that could reduce")
    best = min(cost.values())
    found = ways.in_order(switch for switch, each in cost.items() if each == best)
    return found[turn % len(found)]


def _up(ways: Ways, leaf: str, top: str) -> list[str]:
    """Switches after ``leaf`` on a shortest way to ``top``."""
    towards, path = ((top, 0),), [leaf]
    if leaf not in ways.hops_across(towards):
        raise InputError(f"there is no way from switch {leaf} to {top}, in which its traffic would be reduced")
    while path[-1] != top:
        path.append(ways.onward(towards, path[-1])[0])
    return path[1:]
