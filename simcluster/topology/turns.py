"""Turning a regular cluster about its top switches: machines take each other's places, and every route goes along.

A job whose replicas are all alike looks the same from each of them, if the cluster does; and one with a rank on every
GPU of a machine looks the same from each rail.  What has to hold for that is checked here, in arrays: then one part of
the cluster, the *window*, tells what all others carry.  Imports ``colours``, ``alike``, ``hops``,
``policies`` and ``ways``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from simcluster.colours import compact
from simcluster.topology.alike import Ends, Floats, Machines
from simcluster.topology.hops import Hops
from simcluster.topology.policies import RoutingSpec
from simcluster.topology.ways import Ways

Ints: TypeAlias = NDArray[np.int64]
Few: TypeAlias = NDArray[np.int32]
Rates: TypeAlias = tuple[Floats, ...]
"""For every link what must be equal."""

_BY_DESTINATION = ("static", "shortest")
_FEW = 512  # machines among which most turns fail that fail


@dataclass(frozen=True, eq=False)
class Step:
    """GPUs in place p of machine m take those of GPUs in place ``place[p]`` of machine ``machine[m]``; -1 for machines
    that are not used."""

    machine: Ints
    place: Ints

    @property
    def stays(self) -> bool:
        """Does every GPU come to a GPU in the same place?"""
        return bool((self.place == np.arange(len(self.place))).all())


@dataclass(frozen=True, eq=False)
class Turn:
    """``steps`` that bring a cluster onto itself, one after the other as often as one likes.

    The ``window`` has one GPU of all ``count`` that take each other's places so; it says which one each becomes there,
    and which link of a machine each of its ``links`` becomes (places).
    """

    steps: tuple[Step, ...]
    window: Step
    links: Ints
    count: int


@dataclass(frozen=True, eq=False)
class Turned:
    """``link`` has for every link the one that it becomes in the window, -1 for links that are not used."""

    link: Few
    _machines: Machines

    @property
    def settled(self) -> bool:
        """Was every way inside a machine found, of those asked for so far, once for all machines?"""
        return self._machines.settled


def step_of(machines: Machines, gpus: Ints) -> Step | None:
    """What takes GPU i, of those used, to GPU ``gpus[i]``; None if machines or places do not stay together."""
    own, place = machines.machine[: len(gpus)], machines.place[: len(gpus)]
    found = []
    for size, here, there in (
        (len(machines.gpus), own, machines.machine[gpus]),
        (machines.size, place, machines.place[gpus]),
    ):
        to = np.full(size, -1, dtype=np.int64)
        to[here] = there
        if (to[here] != there).any():
            return None
        found.append(to)
    return Step(found[0], found[1])


def links_turned(
    ways: Ways,
    gpus: Sequence[str],
    link_index: Mapping[tuple[str, str], int],
    machines: Machines,
    turn: tuple[Sequence[Step], Step],
    rates: Rates,
) -> Ints | None:
    """``Turn.links``, of steps and the window, from machine 0 (``gpus`` and ``link_index`` are its own).

    What a GPU leaves by goes where it goes, everything else stays.  None unless that brings links onto equal links, and
    as many of them onto each of the window as GPUs.
    """
    columns = np.arange(machines.links.shape[1])
    steps, window = turn
    if window.stays and all(step.stays for step in steps):
        return columns
    inside = {
        pair: int(machines.link_place[link]) for pair, link in link_index.items() if machines.link_place[link] >= 0
    }
    maps = [_columns(ways, gpus, inside, step.place) for step in (*steps, window)]
    back = machines.back[machines.links[0]]
    for to in maps:
        if to is None or any(
            (rate[each] != rate[each[to]]).any() for rate in rates for each in (machines.links[0], back)
        ):
            return None
    orbit = columns
    for _ in columns:  # until the lowest of all that take each other's places is known
        for to in maps[:-1]:
            orbit = np.minimum(orbit, orbit[to])
    found = maps[-1]
    assert found is not None
    several = len(window.place) // len(np.unique(window.place))
    if (orbit[found] != orbit).any() or (np.bincount(found)[np.unique(found)] != several).any():
        return None
    return found


def _columns(ways: Ways, gpus: Sequence[str], inside: Mapping[tuple[str, str], int], place: Ints) -> Ints | None:
    """Where every link of a machine comes to if the GPUs come to these places; None if that is no link."""
    to: dict[str, str] = {}
    if (place < 0).any():
        return None
    walks = [
        [*(ways.only_walk_inside(gpu, port.node) or ()), port.switch]
        for gpu, (port,) in zip(gpus, ways.near.exits, strict=True)
    ]
    for own, other in enumerate(place.tolist()):
        if len(walks[own]) != len(walks[other]) or any(
            to.setdefault(a, b) != b for a, b in zip(walks[own], walks[other], strict=True)
        ):
            return None
    found = np.full(len(inside), -1, dtype=np.int64)
    for (a, b), column in inside.items():
        found[column] = inside.get((to.get(a, a), to.get(b, b)), -1)
    return None if (found < 0).any() else found


def counterparts(
    machines: Machines, ends: Ends, hops: Hops, policy: RoutingSpec, turn: Turn, rates: Rates
) -> Few | None:
    """For every link the one that it becomes in the window, -1 for links that are not used.

    None unless each route between used GPUs is turned into the route between the GPUs that these become: leaves are
    turned as their machines are, all under the same top switches, which stay, and the policy picks the same of those.
    Nor where a link above leaves becomes one with another of the ``rates``; those of machines are alike.
    """
    used = np.flatnonzero(turn.window.machine >= 0)
    if policy.kind not in _BY_DESTINATION or policy.pxn:
        return None
    found = _leaves(machines, ends, hops, turn, used)
    if found is None:
        return None
    below, window = found
    top = hops.onto[below[0]]
    tops = hops.neighbours[top]
    same = (hops.onto[below] == top).all() and (hops.whence[below] == top).all()
    if not same or np.isin(tops, below).any() or len(below) != turn.count * len(np.unique(window)):
        return None
    order = (ends.order % max(1, len(tops)))[machines.gpus]
    if policy.kind == "static" and any((order[used] != _there(order, step, used)).any() for step in turn.steps):
        return None
    nth = np.tile(np.arange(len(tops)), len(below))
    up = hops.nth(np.repeat(below, len(tops)), nth)
    up_to = hops.nth(np.repeat(window, len(tops)), nth)
    pairs = (up, up_to), (machines.back[up], machines.back[up_to])
    if any((each[link] != each[to]).any() for each in rates for link, to in pairs):
        return None
    return _moved(machines, turn, used, pairs)


def leaves_together(machines: Machines, ends: Ends, gpus: Ints) -> bool:
    """Do GPUs of one leaf come to GPUs of one leaf, if GPU i, of the first few, comes to GPU ``gpus[i]``?"""
    for leaf in (ends.out_leaf, ends.in_leaf):
        own, onto = leaf[: len(gpus)], leaf[gpus]
        next_leaf = np.zeros(int(own.max()) + 1, dtype=np.int64)
        next_leaf[own] = onto
        if (next_leaf[own] != onto).any():
            return False
    return True


def _there(table: Ints, step: Step, used: Ints) -> Ints:
    """Of a table by machine and place, what is where these machines come to."""
    found: Ints = table[step.machine[used]]
    return found if step.stays else found[:, step.place]


def _leaves(machines: Machines, ends: Ends, hops: Hops, turn: Turn, used: Ints) -> tuple[Ints, Ints] | None:
    """The leaves of these machines, and those that they become in the window; None if they do not go together."""
    same = np.array_equal(ends.out_leaf, ends.in_leaf)
    leaves = [side[machines.gpus] for side in ((ends.out_leaf,) if same else (ends.out_leaf, ends.in_leaf))]
    window = np.full(hops.size, -1, dtype=np.int64)
    for step in (*turn.steps, turn.window):
        next_leaf = np.full(hops.size, -1, dtype=np.int64)
        for leaf in leaves:
            own, onto = leaf[used], _there(leaf, step, used)
            next_leaf[own] = onto
            if (next_leaf[own] != onto).any():
                return None
        if step is turn.window:
            window = next_leaf
        elif np.bincount(next_leaf[next_leaf >= 0]).max() > 1:
            return None
    below = np.flatnonzero(window >= 0)
    return below, window[below]


def _moved(machines: Machines, turn: Turn, used: Ints, pairs: Iterable[tuple[Ints, Ints]]) -> Few:
    """The counterparts of the machines' links and of ``pairs``."""
    found = np.full(len(machines.back), -1, dtype=np.int32)
    those, which = compact(turn.window.machine[used])
    small, all_used = machines.links[those][:, turn.links].astype(np.int32), len(used) == len(machines.links)
    if all_used:
        machines.put(small[which], found)
    else:
        found[machines.links[used]] = small[which]
    outside = machines.link_place[machines.back[machines.links[0]]] < 0  # the ways back of these begin elsewhere
    table = machines.links[:, outside] if all_used else machines.links[used][:, outside]
    found[machines.back[table]] = machines.back[small[:, outside]][which]
    for link, to in pairs:
        found[link] = to
    return found
