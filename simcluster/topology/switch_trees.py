"""Trees of switches that add up or copy what passes: the way of every GPU to one switch above all of them, and back.

GPUs on one NVSwitch meet in it.  Others meet in the switch of the fabric that is nearest to all of them; each leaves
its machine as it would towards another machine of the group, and from the leaf on all follow one tree.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import networkx as nx

from simcluster.base.errors import InputError
from simcluster.base.natural import natural

Way = tuple[tuple[int, float], ...]
"""(link, 1.0) in order: a flow's links with the fraction of its bytes on each, here all of them."""


class SwitchTrees:
    """Meeting points of one cluster; ``route`` gives the nodes from GPU to GPU."""

    def __init__(
        self,
        graph: nx.DiGraph[str],
        gpus: Sequence[str],
        host_of: Sequence[int],
        link_index: Mapping[tuple[str, str], int],
        route: Callable[[int, int], Sequence[str]],
    ) -> None:
        self._graph, self._gpus, self._host_of = graph, gpus, host_of
        self._link_index = link_index
        self._route = route
        self._towards: dict[str, dict[str, int]] = {}

    def nvswitch(self, gpu: int) -> str:
        """The NVSwitch that the GPU is linked to; "" for none."""
        nodes = self._graph.nodes
        return next((node for node in self._graph.adj[self._gpus[gpu]] if nodes[node]["kind"] == "nvswitch"), "")

    def ways(self, gpus: Sequence[int], turn: int) -> tuple[tuple[Way, Way], ...]:
        """For each GPU the links to the switch in which all of them meet, and from there to it.

        Of equally near switches it is number ``turn`` (modulo how many there are, in natural order of names).
        InputError when there is none.
        """
        inside = dict.fromkeys(self.nvswitch(gpu) for gpu in gpus)
        if len(inside) == 1 and "" not in inside:
            paths = [[self._gpus[gpu], *inside] for gpu in gpus]
        else:
            exits = [self._to_leaf(gpu, gpus) for gpu in gpus]
            top = self._above(list(dict.fromkeys(path[-1] for path in exits)), turn)
            paths = [path + self._up(path[-1], top) for path in exits]
        return tuple((self._links(path), self._links(path[::-1])) for path in paths)

    def _to_leaf(self, gpu: int, gpus: Sequence[int]) -> list[str]:
        """Nodes from the GPU to the first switch of the fabric, on its route to another machine of the group."""
        other = next((other for other in gpus if self._host_of[other] != self._host_of[gpu]), None)
        if other is None:
            raise InputError(f"{self._gpus[gpu]} and the others of its group share no switch that could reduce")
        path: list[str] = []
        for node in self._route(gpu, other):
            path.append(node)
            if self._is_switch(node):
                break
        return path

    def _above(self, leaves: Sequence[str], turn: int) -> str:
        """The switch to which the way from the farthest leaf is shortest; among those the nearest to all."""
        cost: dict[str, tuple[int, int]] = {}
        hops = [self._hops_to(leaf) for leaf in leaves]
        for switch in hops[0]:
            if all(switch in each for each in hops):
                distances = [each[switch] for each in hops]
                cost[switch] = max(distances), sum(distances)
        if not cost:
            raise InputError(f"the switches {leaves[0]} and {leaves[-1]} have no switch above both that could reduce")
        best = min(cost.values())
        found = sorted((switch for switch, each in cost.items() if each == best), key=natural)
        return found[turn % len(found)]

    def _up(self, leaf: str, top: str) -> list[str]:
        """Switches after ``leaf`` on a shortest way to ``top``."""
        hops, path = self._hops_to(top), [leaf]
        if leaf not in hops:
            raise InputError(f"there is no way from switch {leaf} to {top}, in which its traffic would be reduced")
        while path[-1] != top:
            nearer = hops[path[-1]] - 1
            path.append(min((node for node in self._graph.adj[path[-1]] if hops.get(node) == nearer), key=natural))
        return path[1:]

    def _hops_to(self, switch: str) -> dict[str, int]:
        """Hops between switches, to this one."""
        if switch not in self._towards:
            hops = {switch: 0}
            frontier = [switch]
            while frontier:
                frontier = [node for node in dict.fromkeys(self._below(frontier)) if node not in hops]
                hops.update(dict.fromkeys(frontier, max(hops.values()) + 1))
            self._towards[switch] = hops
        return self._towards[switch]

    def _below(self, switches: Sequence[str]) -> list[str]:
        return [node for switch in switches for node in self._graph.pred[switch] if self._is_switch(node)]

    def _is_switch(self, node: str) -> bool:
        data = self._graph.nodes[node]
        return bool(data["kind"] == "switch" and "network" not in data)

    def _links(self, path: Sequence[str]) -> Way:
        missing = [pair for pair in itertools.pairwise(path) if pair not in self._link_index]
        if missing:
            a, b = missing[0]
            raise InputError(f"no link from {a} to {b}: what is reduced in a switch comes back the way it went")
        return tuple((self._link_index[pair], 1.0) for pair in itertools.pairwise(path))
