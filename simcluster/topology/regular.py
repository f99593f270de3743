"""Clusters of equal machines on a tree of switches, in closed form: routes of many flows without a graph.

What ``alike`` and ``access_paths`` find in a graph follows here from numbers: of machines, their parts and switches.
One machine with its leaves is a graph, and tells how its GPUs leave and are entered.  The same bits come out; where a
cluster is not so regular, ``None``, and the graph is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from simcluster.base.arrays import Floats, Ints
from simcluster.base.errors import InputError
from simcluster.base.natural import natural
from simcluster.topology.access_paths import Ways
from simcluster.topology.alike import Ends, Machines, components
from simcluster.topology.draft import Draft
from simcluster.topology.hops import Hops
from simcluster.topology.host_ways import HostWays
from simcluster.topology.links import Graph, compute_part
from simcluster.topology.paths import Paths
from simcluster.topology.policies import RoutingSpec
from simcluster.topology.turns import (
    Automorphism,
    Ground,
    LinkImages,
    counterparts,
    leaves_together,
    links_turned,
    stay_together,
    step_of,
)

Spread: TypeAlias = tuple[tuple[int, float], ...]


class Regular:
    """The closed form of one draft.  ``spread`` routes a single flow, where that takes the graph."""

    def __init__(self, draft: Draft, policy: RoutingSpec, spread: Callable[[int, int, int], Spread]) -> None:
        self._draft, self._policy = draft, policy
        pattern = draft.pattern
        self._locals = [place for place, node in enumerate(pattern) if pattern.nodes[node]["kind"] == "gpu"]
        self._sample, self._sample_index = self._one_machine()
        gpus = [node for node in pattern if pattern.nodes[node]["kind"] == "gpu"]
        self._ways = Ways(compute_part(self._sample), gpus)
        self._gpus = gpus
        self.machines = self._machines()
        self._nics = [list(dict.fromkeys(port.node for port in ports)) for ports in self._ways.near.exits]
        own = [number for number, (_, data) in draft.switches.items() if "network" not in data]
        self._switches = sorted(own, key=lambda number: natural(draft.switches[number][0]))
        self.paths = Paths(
            self.machines, lambda: self._ends, lambda: self._hops, lambda: self._ground.rows, policy, spread, self._walk
        )

    @classmethod
    def of(cls, draft: Draft, policy: RoutingSpec, spread: Callable[[int, int, int], Spread]) -> Regular | None:
        """The closed form, where every GPU has one way out of its machine and one in, and all reach each other.

        None where machines are linked to each other directly, too: they must leave by switches.
        """
        if not draft.stamped or _linked_directly(draft) or not nx.is_weakly_connected(compute_part(draft.pattern)):
            return None
        found = cls(draft, policy, spread)
        near = found._ways.near
        if any(len(ports) != 1 for ports in (*near.exits, *near.entries)):
            return None
        ends = found._ends
        several = draft.stamped > 1 and len(np.unique(ends.part[ends.out_leaf])) > 1
        if several or min(ends.out_leaf.min(), ends.in_leaf.min()) < 0:
            return None
        _ = found._ground  # of the cluster, and not of who routes first
        return found

    # --- single GPUs -------------------------------------------------------------------------------------------------

    def uplinks(self, gpu: int) -> tuple[str, ...]:
        """As ``Router.uplinks``."""
        machine, local = divmod(gpu, len(self._gpus))
        return tuple([self._named(machine, node) for node in self._nics[local]])

    def nvswitch(self, gpu: int) -> str:
        """As ``SwitchTrees.nvswitch``."""
        machine, local = divmod(gpu, len(self._gpus))
        return self._named(machine, self._switch_of[local]) if self._switch_of[local] else ""

    def _named(self, machine: int, node: str) -> str:
        """What a node of machine 0 is called in another."""
        return f"{self._draft.domain}{machine}{node[len(self._draft.domain) + 1 :]}"

    def seats(self, gpus: Ints) -> tuple[Ints, Ints]:
        """Numbers of the NVSwitch (0 for none) and of the NICs of GPUs: those of different nodes are different."""
        switches, nics = self._seats
        return switches[gpus], nics[gpus]

    @cached_property
    def _seats(self) -> tuple[Ints, Ints]:
        """``seats`` of all GPUs."""
        names = list(
            dict.fromkeys(node for nodes in (*self._nics, [s for s in self._switch_of if s]) for node in nodes)
        )
        place = {node: number for number, node in enumerate(names)}
        first = 1 + np.arange(self._draft.stamped)[:, None] * len(names)
        nics = np.array([[place[node] for node in nodes] for nodes in self._nics], dtype=np.int64)
        switches = first + np.array([place.get(node, -1) for node in self._switch_of], dtype=np.int64)
        switches[:, [not node for node in self._switch_of]] = 0
        return switches.ravel(), (first + nics.ravel()).reshape(-1, nics.shape[1])

    def switch_ways(self, gpus: Sequence[int]) -> tuple[tuple[Spread, Spread], ...] | None:
        """As ``SwitchTrees.ways``, of GPUs on one NVSwitch; None for others."""
        pairs = [divmod(gpu, len(self._gpus)) for gpu in gpus]
        if len({machine for machine, _ in pairs}) > 1 or not all(self._switch_of):
            return None
        if len({self._switch_of[local] for _, local in pairs}) > 1:
            return None
        found = []
        for machine, local in pairs:
            up = self._in_machine(machine, [(self._gpus[local], self._switch_of[local])])
            found.append((up, tuple((int(self.machines.back[link]), 1.0) for link, _ in up)))
        return tuple(found)

    def host_way(self, gpu: int, direction: str) -> Spread | None:
        """As ``HostWays.way``; None where there is none."""
        machine, local = divmod(gpu, len(self._gpus))
        try:
            return self._moved(machine, self._host_ways.way(self._gpus[local], direction))
        except InputError:
            return None

    def turned(
        self, steps: Sequence[NDArray[np.integer[Any]]], window: NDArray[np.integer[Any]], count: int, wired: Floats
    ) -> LinkImages | None:
        """As ``Cluster.turned``; ``wired`` is the capacity of every link."""
        found = [step_of(self.machines, gpus) for gpus in (*steps, window)]
        known = [step for step in found if step is not None]
        if len(known) < len(found):
            return None
        *those, into = known
        if not all(stay_together(np.arange(self._draft.stamped) // self._draft.per_host, step) for step in those):
            return None
        links = links_turned(
            self._ways, self._gpus, self._sample_index, self.machines, (those, into), self._ground.sort
        )  # fmt: skip
        if links is None:
            return None
        return counterparts(self._ground, self._policy, Automorphism(tuple(those), into, *links, count), wired)

    def leaves_together(self, gpus: Ints) -> bool:
        """As ``Cluster.leaves_together``."""
        return leaves_together(self.machines, self._ends, gpus)

    @property
    def hosts(self) -> Ints:
        """The host of every GPU."""
        return np.repeat(np.arange(self._draft.stamped) // self._draft.per_host, self.machines.size)

    def tray(self, gpu: int) -> int:
        """The tray of a GPU in its rack."""
        return int(self._sample.nodes[self._gpus[gpu % len(self._gpus)]].get("tray", 0))

    @cached_property
    def _host_ways(self) -> HostWays:
        return HostWays(self._sample, self._sample_index)

    @cached_property
    def _switch_of(self) -> list[str]:
        kind = self._sample.nodes
        return [next((node for node in self._sample.adj[gpu] if kind[node]["kind"] == "nvswitch"), "")
                for gpu in self._gpus]  # fmt: skip

    def _in_machine(self, machine: int, hops: Sequence[tuple[str, str]]) -> Spread:
        return self._moved(machine, [(self._sample_index[hop], 1.0) for hop in hops])

    def _moved(self, machine: int, way: Sequence[tuple[int, float]]) -> Spread:
        """A way in machine 0 as it is in another: links that begin there, or that lead back along such."""
        table, place, back = self.machines.links[machine], self.machines.link_place, self.machines.back
        return tuple(
            (int(table[place[link]] if place[link] >= 0 else back[table[place[back[link]]]]), part)
            for link, part in way
        )

    # --- arrays ------------------------------------------------------------------------------------------------------

    def _one_machine(self) -> tuple[Graph, dict[tuple[str, str], int]]:
        """Machine 0 with the switches that it is linked to, and the numbers of these links."""
        draft = self._draft
        names = dict(zip(draft.nodes[0].tolist(), draft.pattern, strict=True))
        own = np.zeros(draft.size, dtype=bool)
        own[draft.nodes[0]] = True
        sample: Graph = nx.DiGraph()
        sample.add_nodes_from((name, dict(data)) for name, data in draft.pattern.nodes(data=True))
        start, end, sort = draft.came
        index: dict[tuple[str, str], int] = {}
        for came in np.flatnonzero(own[start] | own[end]).tolist():
            for node in (int(start[came]), int(end[came])):
                if node not in names:
                    names[node], data = draft.switches[node]
                    sample.add_node(names[node], **data)
            pair = names[int(start[came])], names[int(end[came])]
            sample.add_edge(*pair, **draft.sorts[int(sort[came])])
            index[pair] = int(draft.number[came])
        return sample, index

    def _machines(self) -> Machines:
        draft = self._draft
        links = draft.stamped_links()
        count, size = draft.stamped, len(self._locals)
        place = np.full(len(draft.order), -1, dtype=np.int64)
        place[links] = np.arange(links.shape[1])
        gpu = np.arange(count * size)
        return Machines(
            machine=gpu // size,
            place=gpu % size,
            gpus=gpu.reshape(count, size),
            links=links,
            link_place=place,
            back=draft.number[draft.order ^ 1],  # the two ways of a link come together
            end=draft.came[1][draft.order],
            _known={},
        )

    @cached_property
    def _ends(self) -> Ends:
        draft = self._draft
        number = np.full(draft.size, -1, dtype=np.int64)
        number[self._switches] = np.arange(len(self._switches))
        inside = natural(f"{draft.domain}0")[0]
        names = [draft.switches[switch][0] for switch in self._switches]
        behind = np.array([natural(name)[0] > inside for name in names])  # switches after all machines, by name
        position = np.arange(len(names)) + behind * draft.stamped * len(compute_part(draft.pattern))
        return Ends.of_machine(
            self.machines, self._ways, self._gpus, self._sample_index, names, number, self._part(number), position
        )

    def _part(self, number: Ints) -> Ints:
        """Numbers of the parts of the fabric that links join, by switch."""
        start, end, _ = self._draft.came
        among = (number[start] >= 0) & (number[end] >= 0)
        return components(number[start[among]], number[end[among]], np.zeros(len(self._switches), dtype=bool))

    @cached_property
    def _hops(self) -> Hops:
        draft, ends = self._draft, self._ends
        number = np.full(draft.size, -1, dtype=np.int64)
        number[self._switches] = np.arange(len(self._switches))
        start, end, _ = draft.came
        lowest = min(self._switches, default=0)
        among = np.flatnonzero((start >= lowest) & (end >= lowest))  # few others come after all machines
        among = among[(number[start[among]] >= 0) & (number[end[among]] >= 0)]
        code = number[start[among]] * len(ends.switches) + number[end[among]]
        return Hops.of_links(len(ends.switches), code, draft.number[among], both_ways=True)

    @cached_property
    def _ground(self) -> Ground:
        sorts = [(data["bandwidth"], data["latency"]) for data in self._draft.sorts]
        number = {sort: place for place, sort in enumerate(dict.fromkeys(sorts))}
        kind = np.array([number[sort] for sort in sorts]).astype(np.min_scalar_type(len(number)))
        return Ground.of(self.machines, self._ends, self._hops, kind[self._draft.came[2]][self._draft.order])

    def _walk(self, src: int, dst: int) -> list[int] | None:
        """Links from GPU to GPU of machine 0, if there is one way, which does not leave it."""
        ways = self._ways
        walk = ways.only_walk_inside(self._gpus[src], self._gpus[dst]) if self._stays(src, dst) else None
        return None if walk is None else [self._sample_index[hop] for hop in pairwise(walk)]

    def _stays(self, src: int, dst: int) -> bool:
        """Is the way inside the machine as short as any over one leaf, or up from one and down to another?"""
        inside = self._ways.hops_inside(self._gpus[dst]).get(self._gpus[src])
        leave, enter = self._ways.near.exits[src][0], self._ways.near.entries[dst][0]
        outside = leave.hops + 1 + enter.hops + 1 + (0 if leave.switch == enter.switch else 2)
        return inside is not None and inside <= outside


def _linked_directly(draft: Draft) -> bool:
    """Does a link lead from one machine to another, without a switch between?"""
    machine = np.full(draft.size, -1, dtype=np.int64)
    machine[draft.nodes] = np.arange(draft.stamped)[:, None]
    start, end, _ = draft.came
    return bool(((machine[start] >= 0) & (machine[end] >= 0) & (machine[start] != machine[end])).any())
