"""Turning a regular cluster about its top switches: machines take each other's places, and every route goes along.

A job whose replicas are all alike looks the same from each of them, if the cluster does; and one with a rank on every
GPU of a machine looks the same from each rail.  What has to hold for that is checked here, in arrays: then one part of
the cluster, the *window*, tells what all others carry.  Imports ``colours``, ``alike``, ``hops``,
``policies`` and ``ways``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

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
    and which link of a machine each of its ``links`` becomes (places).  Each is taken along with the GPU in place
    ``owner`` of its machine.
    """

    steps: tuple[Step, ...]
    window: Step
    links: Ints
    owner: Ints
    count: int


class _Leaves(NamedTuple):
    """The ``number`` of those that are turned, the links ``up`` from each (rows), and ``of_gpu``, by which GPUs are
    entered and leave, the number of that of every GPU."""

    number: Ints
    up: Ints
    of_gpu: tuple[Ints, Ints]


@dataclass(frozen=True, eq=False)
class Turned:
    """``link`` has for every link the one that it becomes in the window, -1 for links that are not used.

    ``wired`` is the capacity of every link (B/s), with nothing wrong with it.
    """

    link: Few
    wired: Floats
    _machines: Machines
    _turn: Turn
    _leaves: _Leaves

    @property
    def settled(self) -> bool:
        """Was every way inside a machine found, of those asked for so far, once for all machines?"""
        return self._machines.settled

    @cached_property
    def owner(self) -> Few:
        """For every link a GPU that each turn takes along with it, -1 for links that are not used."""
        machines = self._machines
        used = np.flatnonzero(self._turn.window.machine >= 0)
        gpus, links = machines.gpus[used], machines.links[used]
        of_leaf = np.full(int(self._leaves.number.max()) + 1, -1, dtype=np.int64)
        for leaf in self._leaves.of_gpu:
            of_leaf[leaf[gpus]] = gpus
        ups = self._leaves.up, of_leaf[self._leaves.number][:, None]
        found = np.full(len(self.link), -1, dtype=np.int32)
        for link, gpu in ((links, gpus[:, self._turn.owner]), ups):
            back = machines.back[link]
            outside = machines.link_place[back[:1]] < 0  # the ways back of the others begin in machines
            found[back[:, outside[0]]] = np.broadcast_to(gpu, link.shape)[:, outside[0]]
            found[link] = gpu
        return found

    def along(self, turns: Sequence[Ints]) -> bool:
        """Is each link of a way inside a machine, of those asked for so far, as often turned as one of its two GPUs?

        ``turns`` say how often GPUs are, step by step.  Ways between machines are: of the links of two machines, and
        those up from their leaves.
        """
        machines, owner = self._machines, self._turn.owner
        gpus = machines.gpus[np.unique(self._turn.window.machine[self._turn.window.machine >= 0])]
        pairs = [(*divmod(pair, machines.size), owner[way]) for pair, way in machines.ways_known.items()]
        return all(
            ((times[:, link] == times[:, [one]]) | (times[:, link] == times[:, [other]])).all()
            for times in (each[gpus] for each in turns)
            for one, other, link in pairs
        )


def step_of(machines: Machines, gpus: Ints) -> Step | None:
    """What takes GPU i, of those used, to GPU ``gpus[i]``; None if machines or places do not stay together."""
    own, place = machines.machine[: len(gpus)], machines.place[: len(gpus)]
    if len(gpus) == machines.gpus.size and machines.in_rows:  # the usual: all of them, machine by machine
        whither = machines.machine[gpus].reshape(machines.gpus.shape)
        places = machines.place[gpus].reshape(machines.gpus.shape)
        together = (whither == whither[:, :1]).all() and (places == places[0]).all()
        return Step(whither[:, 0], places[0]) if together else None
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


def stay_together(part: Ints, step: Step) -> bool:
    """Do machines of one part all come to machines of one part?"""
    used = np.flatnonzero(step.machine >= 0)
    onto = np.full(int(part.max(initial=-1)) + 1, -1, dtype=np.int64)
    onto[part[used]] = part[step.machine[used]]
    return bool((onto[part[used]] == part[step.machine[used]]).all())


def links_turned(
    ways: Ways,
    gpus: Sequence[str],
    link_index: Mapping[tuple[str, str], int],
    machines: Machines,
    turn: tuple[Sequence[Step], Step],
    rates: Rates,
) -> tuple[Ints, Ints] | None:
    """``Turn.links`` and ``owner``, of steps and the window, from machine 0 (``gpus`` and ``link_index`` are its own).

    What a GPU leaves by goes where it goes, everything else stays.  None unless that brings links onto equal links, and
    as many of them onto each of the window as GPUs.
    """
    columns = np.arange(machines.links.shape[1])
    steps, window = turn
    if window.stays and all(step.stays for step in steps):
        return columns, np.zeros_like(columns)
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
    owner = np.where(found == columns, window.place.min(), -1)
    for _ in columns:  # from the window on
        for to, step in zip(maps, steps, strict=False):
            owner[to] = np.where(owner[to] < 0, np.where(owner < 0, -1, step.place[owner]), owner[to])
    return found, owner


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
) -> Turned | None:
    """What becomes of every link.

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
    order = machines.rows(ends.order % max(1, len(tops)))
    if policy.kind == "static" and any((order[used] != _there(order, step, used)).any() for step in turn.steps):
        return None
    up = hops.all_from(below, len(tops))
    place = np.searchsorted(below, window)  # leaves of the window, among all
    both = up, machines.back[up]
    for rate in [each[link] for each in rates for link in both]:
        if (rate != rate[place]).any():
            return None
    moved = _moved(machines, turn, used, [(link, link[place]) for link in both])
    leaves = _Leaves(below, up, (ends.in_leaf, ends.out_leaf))
    return Turned(moved, rates[0], machines, turn, leaves)


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
    found: Ints = table[step.machine if len(used) == len(table) else step.machine[used]]
    return found if step.stays else found[:, step.place]


def _leaves(machines: Machines, ends: Ends, hops: Hops, turn: Turn, used: Ints) -> tuple[Ints, Ints] | None:
    """The leaves of these machines, and those that they become in the window; None if they do not go together."""
    same = np.array_equal(ends.out_leaf, ends.in_leaf)
    leaves = [machines.rows(side) for side in ((ends.out_leaf,) if same else (ends.out_leaf, ends.in_leaf))]
    of_used = leaves if len(used) == len(machines.gpus) else [leaf[used] for leaf in leaves]
    window = np.full(hops.size, -1, dtype=np.int64)
    for step in (*turn.steps, turn.window):
        next_leaf = np.full(hops.size, -1, dtype=np.int64)
        for leaf, own in zip(leaves, of_used, strict=True):
            onto = _there(leaf, step, used)
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
        machines.put(small, found, which)
    else:
        found[machines.links[used]] = small[which]
    outside = machines.link_place[machines.back[machines.links[0]]] < 0  # the ways back of these begin elsewhere
    table = machines.links[:, outside] if all_used else machines.links[used][:, outside]
    found[machines.back[table]] = machines.back[small[:, outside]][which]
    for link, to in pairs:
        found[link] = to
    return found
