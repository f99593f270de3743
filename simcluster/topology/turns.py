"""Turning a regular cluster about its top switches: machines take each other's places, and every route goes along.

A job whose replicas are all alike looks the same from each of them, if the cluster does.  What has to hold for that is
checked here, in arrays: then one part of the cluster, the *window*, tells what all others carry.  Imports ``alike``,
``hops`` and ``policies``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from simcluster.topology.alike import Ends, Floats, Machines
from simcluster.topology.hops import Hops
from simcluster.topology.policies import RoutingSpec

Ints: TypeAlias = NDArray[np.int64]

_BY_DESTINATION = ("static", "shortest")
_FEW = 512  # machines among which most turns fail that fail


@dataclass(frozen=True, eq=False)
class Turn:
    """Machine m takes the place of machine ``next[m]``; doing so ``count`` times brings all back.

    ``window[m]`` is the machine that it becomes in the window, which has one of every such circle.  Both are -1 for
    machines that are not used.
    """

    next: Ints
    window: Ints
    count: int


@dataclass(frozen=True, eq=False)
class Turned:
    """``link`` has for every link the one that it becomes in the window, -1 for links that are not used."""

    link: Ints
    _machines: Machines

    @property
    def settled(self) -> bool:
        """Was every way inside a machine found, of those asked for so far, once for all machines?"""
        return self._machines.settled


def turn_of(machines: Machines, gpus: Ints, window: Ints, count: int) -> Turn | None:
    """The turn that takes GPU i, of those used, to GPU ``gpus[i]``; None if machines do not stay together.

    ``window[i]`` is the GPU that it becomes in the window.
    """
    found = []
    own = machines.machine[: len(gpus)]
    place = machines.place[: len(gpus)]
    for onto in (gpus, window):
        if (machines.place[onto] != place).any():
            return None
        to = np.full(len(machines.gpus), -1, dtype=np.int64)
        to[own] = machines.machine[onto]
        if (to[own] != machines.machine[onto]).any():
            return None
        found.append(to)
    return Turn(found[0], found[1], count)


def counterparts(
    machines: Machines, ends: Ends, hops: Hops, policy: RoutingSpec, turn: Turn, rates: tuple[Floats, ...]
) -> Ints | None:
    """For every link the one that it becomes in the window, -1 for links that are not used.

    None unless each route between used GPUs is turned into the route between the GPUs that these become: leaves are
    turned as their machines are, all under the same top switches, which stay, and the policy picks the same of those.
    Nor where a link above leaves becomes one with another of the ``rates``; those of machines are alike.
    """
    used = np.flatnonzero(turn.next >= 0)
    if policy.kind not in _BY_DESTINATION or policy.pxn or _leaves(machines, ends, hops, turn, used[:_FEW]) is None:
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
    if policy.kind == "static" and (order[used] != order[turn.next[used]]).any():
        return None
    nth = np.tile(np.arange(len(tops)), len(below))
    up = hops.nth(np.repeat(below, len(tops)), nth)
    up_to = hops.nth(np.repeat(window, len(tops)), nth)
    pairs = (up, up_to), (machines.back[up], machines.back[up_to])
    if any((each[link] != each[to]).any() for each in rates for link, to in pairs):
        return None
    return _moved(machines, turn, used, pairs)


def _leaves(machines: Machines, ends: Ends, hops: Hops, turn: Turn, used: Ints) -> tuple[Ints, Ints] | None:
    """The leaves of these machines, and those that they become in the window; None if they do not go together."""
    next_leaf, window_leaf = np.full((2, hops.size), -1, dtype=np.int64)
    for leaf in (ends.out_leaf[machines.gpus], ends.in_leaf[machines.gpus]):
        own, onto, window = leaf[used], leaf[turn.next[used]], leaf[turn.window[used]]
        next_leaf[own], window_leaf[own] = onto, window
        if (next_leaf[own] != onto).any() or (window_leaf[own] != window).any():
            return None
    below = np.flatnonzero(next_leaf >= 0)
    if np.bincount(next_leaf[below]).max() > 1:
        return None
    return below, window_leaf[below]


def _moved(machines: Machines, turn: Turn, used: Ints, pairs: Sequence[tuple[Ints, Ints]]) -> Ints:
    """The counterparts of the machines' links and of ``pairs``."""
    found = np.full(len(machines.back), -1, dtype=np.int64)
    table, window = machines.links[used], machines.links[turn.window[used]]
    found[table] = window
    outside = machines.link_place[machines.back[machines.links[0]]] < 0  # the ways back of these begin elsewhere
    found[machines.back[table[:, outside]]] = machines.back[window[:, outside]]
    for link, to in pairs:
        found[link] = to
    return found
