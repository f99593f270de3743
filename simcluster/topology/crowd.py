"""What very many flows put on the links together: the routes of ``routing``, thousands of pairs at a time.

In an all-to-all every GPU sends to every other one: of 2,048 that is four million flows.  From switch to switch they go
the same few ways, so flows that are at one switch and bound for one switch are looked at together.  Flows inside a
machine, and those of GPUs that can leave or be entered in several ways, are routed one by one.
Imports ``many``, ``policies`` and ``ways``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simcluster.topology.many import of_equal_keys, shares_of, turns
from simcluster.topology.policies import RoutingSpec
from simcluster.topology.ways import Port, Ways

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Spread: TypeAlias = tuple[tuple[int, float], ...]


class Crowd:
    """Counts flows on the links of one graph; ``spread(src, dst, number)`` routes a single one."""

    def __init__(
        self,
        ways: Ways,
        gpus: Sequence[str],
        link_index: Mapping[tuple[str, str], int],
        policy: RoutingSpec,
        spread: Callable[[int, int, int], Spread],
    ) -> None:
        self._ways, self._gpus, self._link_index = ways, gpus, link_index
        self._policy, self._spread = policy, spread
        self._switches = ways.in_order(ways.switches)
        self._number = {switch: number for number, switch in enumerate(self._switches)}
        order = ways.tree_order
        self._order = np.array([order[ports[0].node] if ports else 0 for ports in ways.near.entries], dtype=np.int64)
        self._shares = shares_of(policy)
        self._machine = ways.machine_of()
        parts = ways.parts_of_fabric()
        self._part = np.array([parts[switch] for switch in self._switches], dtype=np.int64)
        self._out = _ends([self._only(ports, gpu, leaves=True) for gpu, ports in enumerate(ways.near.exits)])
        self._in = _ends([self._only(ports, gpu, leaves=False) for gpu, ports in enumerate(ways.near.entries)])

    def together(self, src: Ints, dst: Ints, number: Ints, weight: Floats, latency: Floats) -> tuple[Floats, int]:
        """What every link carries, and the place of the flow with the most latency; ``latency`` is the links'."""
        load = np.zeros(len(self._link_index))
        flows = _Flows(src, dst, number, weight, np.zeros(len(src)))
        self._add(flows, load, latency)
        return load, int(flows.delay.argmax())

    def _add(self, flows: _Flows, load: Floats, latency: Floats) -> None:
        """Add the flows to ``load``, and note the latency of each."""
        leave, enter = self._out.leaf[flows.src], self._in.leaf[flows.dst]
        plain = (leave >= 0) & (enter >= 0) & (self._machine[flows.src] != self._machine[flows.dst])
        plain &= (self._part[leave] == self._part[enter]) & (not self._policy.pxn)
        for place in np.flatnonzero(~plain).tolist():
            src, dst, number = int(flows.src[place]), int(flows.dst[place]), int(flows.number[place])
            for link, fraction in self._spread(src, dst, number):
                load[link] += flows.weight[place] * fraction
                flows.delay[place] += latency[link] * fraction
        some = flows.of(plain)
        spread = self._by_path if self._shares else self._sprayed
        spread(some, load, latency)
        for ends, gpus in ((self._out, some.src), (self._in, some.dst)):
            sums = np.bincount(gpus, some.weight, len(ends.leaf))
            load += np.bincount(ends.link, sums[ends.gpu], len(load))
            some.delay[:] += np.bincount(ends.gpu, latency[ends.link], len(ends.leaf))[gpus]
        flows.delay[plain] = some.delay

    def _by_path(self, flows: _Flows, load: Floats, latency: Floats) -> None:
        """From switch to switch, each flow on its own path (or several with a share each)."""
        goal = self._in.leaf[flows.dst]
        for path, share in enumerate(self._shares):
            left, here = np.arange(len(goal)), self._out.leaf[flows.src]
            while len(left):
                going = np.flatnonzero(here != goal[left])
                left, here = left[going], here[going]
                onward = np.empty_like(here)
                for rows in of_equal_keys(here * len(self._switches) + goal[left]):
                    some = left[rows]
                    switch, dst = self._switches[here[rows[0]]], int(flows.dst[some[0]])
                    nodes = self._ways.onward(self._ways.near.signatures[dst], switch)
                    links = np.array([self._link_index[switch, node] for node in nodes])
                    own = flows.of(some)
                    columns = (own.src, own.dst, self._order[own.dst], own.number)
                    turn = turns(self._policy, columns, path, self._ways.position[switch], len(nodes))
                    load[links] += share * np.bincount(turn, flows.weight[some], len(nodes))
                    flows.delay[some] += share * latency[links][turn]
                    onward[rows] = np.array([self._number[node] for node in nodes])[turn]
                here = onward

    def _sprayed(self, flows: _Flows, load: Floats, latency: Floats) -> None:
        """From switch to switch, split evenly at each: alike for all flows between the same two."""
        for rows in of_equal_keys(self._out.leaf[flows.src] * len(self._switches) + self._in.leaf[flows.dst]):
            first, weight = rows[0], flows.weight[rows].sum()
            for link, fraction in self._spread(int(flows.src[first]), int(flows.dst[first]), 0):
                if link in self._between:
                    load[link] += weight * fraction
                    flows.delay[rows] += fraction * latency[link]

    @cached_property
    def _between(self) -> frozenset[int]:
        """Links from switch to switch."""
        switches = self._ways.switches
        return frozenset(link for (a, b), link in self._link_index.items() if a in switches and b in switches)

    def _only(self, ports: Sequence[Port], gpu: int, *, leaves: bool) -> tuple[int, tuple[int, ...]]:
        """The number of the switch that the GPU leaves to (or is entered from), and the links; -1 if it can choose."""
        name = self._gpus[gpu]
        ends = [(name, port.node) if leaves else (port.node, name) for port in ports[:1]]
        inside = self._ways.only_walk_inside(*ends[0]) if len(ports) == 1 else None
        if inside is None:
            return -1, ()
        walk = [*inside, ports[0].switch] if leaves else [ports[0].switch, *inside]
        return self._number[ports[0].switch], tuple(self._link_index[hop] for hop in pairwise(walk))


@dataclass(frozen=True, slots=True)
class _Flows:
    """From which GPU to which, its number, its weight and (found on the way) its latency in seconds; of every flow."""

    src: Ints
    dst: Ints
    number: Ints
    weight: Floats
    delay: Floats

    def of(self, rows: NDArray[Any]) -> _Flows:
        """Some of them."""
        return _Flows(self.src[rows], self.dst[rows], self.number[rows], self.weight[rows], self.delay[rows])


@dataclass(frozen=True, slots=True)
class _Ends:
    """The switch that every GPU leaves to, or is entered from (-1: it can choose), and its links: one a row."""

    leaf: Ints
    gpu: Ints
    link: Ints


def _ends(found: Sequence[tuple[int, tuple[int, ...]]]) -> _Ends:
    rows = [(gpu, link) for gpu, (_, links) in enumerate(found) for link in links]
    gpu, link = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    return _Ends(np.array([leaf for leaf, _ in found], dtype=np.int64), gpu, link)
