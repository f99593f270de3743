"""Equal machines and the fabric between them, in arrays: what ``paths`` finds routes with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcluster.base.arrays import Floats, Ints
from simcluster.base.multiset_hash import compact, numbered, rows_alike
from simcluster.topology.access_paths import FabricPort, Ways


@dataclass(frozen=True, eq=False)
class Machines:
    """Machines that are all alike: their links are numbered alike, machine by machine.

    ``machine`` and ``place`` of every GPU, ``gpus`` of every machine by place; ``links`` that begin in every machine,
    by their place there, which ``link_place`` has for every link; ``back`` is for every link the one the other way,
    ``end`` the number of its end.
    """

    machine: Ints
    place: Ints
    gpus: Ints
    links: Ints
    link_place: Ints
    back: Ints
    end: Ints
    _known: dict[int, Ints]

    @property
    def size(self) -> int:
        """GPUs of a machine."""
        return len(self.gpus[0])

    @cached_property
    def origin(self) -> Ints:
        """Of every column of ``owned`` the place of the link that is it, or that it is the way back of."""
        columns = np.arange(self.links.shape[1])
        back = self.back[self.links]
        outside = (self.link_place[back[0]] < 0) & (back >= 0).all(axis=0)
        return np.concatenate([columns, columns[outside]])

    @property
    def owned(self) -> Ints:
        """The links of every machine: those that begin in it, and the ways back of those that end outside."""
        begin = self.links.shape[1]
        return np.concatenate([self.links, self.back[self.links[:, self.origin[begin:]]]], axis=1)

    @cached_property
    def in_rows(self) -> bool:
        """Are GPUs numbered machine by machine, place by place?"""
        return bool((self.gpus == np.arange(self.gpus.size).reshape(self.gpus.shape)).all())

    def rows(self, of_gpus: Ints) -> Ints:
        """Values of GPUs by machine and place."""
        return of_gpus.reshape(self.gpus.shape) if self.in_rows else of_gpus[self.gpus]

    @classmethod
    def of(cls, ways: Ways, gpus: Sequence[str], link_index: Mapping[tuple[str, str], int]) -> Machines | None:
        """The machines of a graph; None where they are not alike."""
        place = {node: number for number, node in enumerate(ways.position)}
        known = [link for pair, link in link_index.items() if pair[0] in place and pair[1] in place]
        if len(known) != len(link_index) or not known:
            return None  # another network beside this one: its links are in between
        ends = np.array([(place[a], place[b]) for a, b in link_index], dtype=np.int64)
        rate = np.array([ways.bandwidth(a, b) for a, b in link_index])
        switch = np.zeros(len(place), dtype=bool)
        switch[[place[node] for node in ways.switches]] = True
        return cls._of_links(
            ends[:, 0], ends[:, 1], rate, switch, np.array([place[gpu] for gpu in gpus], dtype=np.int64)
        )

    @classmethod
    def _of_links(cls, start: Ints, end: Ints, rate: Floats, switch: NDArray[np.bool_], gpu: Ints) -> Machines | None:
        label = components(start, end, switch)
        label[switch] = -1
        kinds, machine = np.unique(label, return_inverse=True)
        machine = machine - int(kinds[0] < 0)  # switches are -1
        count = len(kinds) - int(kinds[0] < 0)
        nodes = np.flatnonzero(~switch)
        order = nodes[np.argsort(machine[nodes], kind="stable")]
        local = np.full(len(switch), -1, dtype=np.int64)
        if len(order) % count or len(gpu) % count:
            return None
        local[order] = np.tile(np.arange(len(order) // count), count)
        gpus = np.argsort(machine[gpu], kind="stable")
        own = np.flatnonzero(machine[start] >= 0)
        if len(own) % count:
            return None
        table = own[np.argsort(machine[start[own]], kind="stable")].reshape(count, -1)
        for column, least in ((machine[start], True), (local[start], False), (local[end], False), (rate, False)):
            rows = column[table]
            if least and (rows != np.arange(count)[:, None]).any():
                return None
            if not least and (rows != rows[:1]).any():
                return None
        by_machine = gpus.reshape(count, -1)
        if (machine[gpu[by_machine]] != np.arange(count)[:, None]).any():
            return None
        if (local[gpu[by_machine]] != local[gpu[by_machine[:1]]]).any():
            return None
        place = np.empty(len(gpu), dtype=np.int64)
        place[by_machine] = np.arange(by_machine.shape[1])
        width = len(switch)
        there, back = start * width + end, end * width + start
        by_ends = np.argsort(there)
        found = by_ends[np.minimum(np.searchsorted(there, back, sorter=by_ends), len(there) - 1)]
        back = np.where(there[found] == back, found, -1)
        own_place = np.full(len(start), -1, dtype=np.int64)
        own_place[table] = np.arange(table.shape[1])
        return cls(machine[gpu], place, by_machine, table, own_place, back, end, {})

    @property
    def settled(self) -> bool:
        """Is there one way that stays inside for every pair asked for so far?"""
        return all(len(way) for way in self._known.values())

    @property
    def ways_known(self) -> Mapping[int, Ints]:
        """The ways inside a machine that have been asked for so far, by pair: as ``ways_inside``."""
        return self._known

    def ways_inside(self, pairs: Ints, walk: Callable[[int, int], list[int] | None]) -> Ints:
        """Places of the links of the pairs (place x size + place): a row each, -1 behind the last.

        A row of nothing but -1 is for a pair without one way that stays inside, or one not asked for.
        """
        for pair in pairs.tolist():
            if pair not in self._known:
                src, dst = divmod(pair, self.size)
                path = np.array(walk(int(self.gpus[0, src]), int(self.gpus[0, dst])) or [-1], dtype=np.int64)
                inside = (path >= 0).all() and np.isin(path, self.links[0]).all()
                self._known[pair] = self.link_place[path] if inside else np.zeros(0, dtype=np.int64)
        found = np.full((self.size**2, max(1, max(map(len, self._known.values()), default=0))), -1, dtype=np.int64)
        for pair, way in self._known.items():
            found[pair, : len(way)] = way
        return found


class ByMachine(NamedTuple):
    """Values of GPUs machine by machine: machine m has those of row ``kind[m]`` of ``table``, place by place."""

    kind: Ints
    table: Ints

    def moved(self, machine: Ints, onto: Ints) -> tuple[Ints, Ints]:
        """The different rows of some machines, each with what those have that take their places."""
        pairs, _ = compact(self.kind[machine] * len(self.table) + self.kind[onto])
        return self.table[pairs // len(self.table)], self.table[pairs % len(self.table)]

    @classmethod
    def of(cls, rows: NDArray[np.integer[Any]]) -> ByMachine:
        """From all of them: a row for every machine."""
        kind, first = numbered(rows_alike(rows))
        if (rows[first][kind] != rows).any():  # different ones with equal sums
            kind = first = np.arange(len(rows))
        return cls(kind, rows[first].astype(np.int64))


@dataclass(frozen=True, eq=False)
class Ends:
    """How every GPU leaves its machine and is entered: by which switch (its number, -1: it can choose) and links.

    Links are rows of ``out_links`` and ``in_links``, -1 behind the last; ``order`` is the place of the GPU in tree
    order, ``part`` numbers the parts of the fabric by switch.  ``leaves`` of a machine are those by which its GPUs
    leave, place by place, then those by which they are entered.
    """

    switches: list[str]
    part: Ints
    order: Ints
    out_leaf: Ints
    in_leaf: Ints
    out_links: Ints
    in_links: Ints
    leaves: ByMachine
    position: Ints

    @cached_property
    def number(self) -> dict[str, int]:
        """The number of every switch by name."""
        return {switch: place for place, switch in enumerate(self.switches)}

    @classmethod
    def of(cls, machines: Machines, ways: Ways, gpus: Sequence[str], link_index: Mapping[tuple[str, str], int]) -> Ends:
        """Those of one machine of a graph, moved to all others."""
        switches = ways.in_order(ways.switches)
        parts = ways.parts_of_fabric()
        of_node = np.full(len(ways.position), -1, dtype=np.int64)
        place = {node: number for number, node in enumerate(ways.position)}
        of_node[[place[switch] for switch in switches]] = np.arange(len(switches))
        part = np.array([parts[switch] for switch in switches], dtype=np.int64)
        position = np.array([ways.position[switch] for switch in switches], dtype=np.int64)
        sides = _sides(machines, ways, [gpus[gpu] for gpu in machines.gpus[0].tolist()], link_index, of_node,
                       machines.gpus[0].tolist())  # fmt: skip
        tree_order = ways.tree_order
        order = np.array([tree_order[ports[0].node] if ports else 0 for ports in ways.near.entries], dtype=np.int64)
        return cls(switches, part, order, *sides, position)

    @classmethod
    def of_machine(
        cls,
        machines: Machines,
        ways: Ways,
        gpus: Sequence[str],
        link_index: Mapping[tuple[str, str], int],
        switches: list[str],
        of_node: Ints,
        part: Ints,
        position: Ints,
    ) -> Ends:
        """The same from machine 0 alone (``ways`` of its ``gpus``), each of which has one way out and one in.

        ``of_node`` numbers the switches by node; their ``part`` and ``position`` are given.
        """
        sides = _sides(machines, ways, gpus, link_index, of_node, range(len(gpus)))
        nodes = list(dict.fromkeys(ports[0].node for ports in ways.near.entries))  # by their first GPU
        of_gpu = np.array([nodes.index(ports[0].node) for ports in ways.near.entries])
        first = np.array([of_gpu.tolist().index(node) for node in range(len(nodes))])
        leaf = sides[1][machines.gpus[:, first]]  # leaf by leaf, then by the first GPU
        order = np.empty(leaf.size, dtype=np.int64)
        order[np.argsort((leaf * len(machines.place) + machines.gpus[:, first]).ravel())] = np.arange(leaf.size)
        return cls(switches, part, order.reshape(leaf.shape)[:, of_gpu].ravel(), *sides, position)


def _sides(
    machines: Machines,
    ways: Ways,
    names: Sequence[str],
    link_index: Mapping[tuple[str, str], int],
    of_node: Ints,
    doors_of: Sequence[int],
) -> tuple[Ints, Ints, Ints, Ints, ByMachine]:
    """Leaves and links of all GPUs, out and in, and leaves by machine, from those of machine 0 (``names``)."""
    sides = []
    for leaves, doors in ((True, ways.near.exits), (False, ways.near.entries)):
        leaf = np.full(len(machines.place), -1, dtype=np.int64)
        found = [_only(ways, doors[gpu], name, link_index, machines, leaves=leaves)
                 for gpu, name in zip(doors_of, names, strict=True)]  # fmt: skip
        links = np.full((len(leaf), max(1, max(map(len, found), default=1))), -1, dtype=np.int64)
        for local, way in enumerate(found):
            if not way:
                continue
            own = machines.gpus[:, local]
            shifted = machines.links[:, machines.link_place[way]]
            leaf[own] = of_node[machines.end[shifted[:, 0]]]
            links[own[:, None], np.arange(len(way))] = shifted if leaves else machines.back[shifted]
        sides += [leaf, links]
    of_machines = ByMachine.of(np.concatenate([machines.rows(sides[0]), machines.rows(sides[2])], axis=1))
    return sides[0], sides[2], sides[1], sides[3], of_machines


def _only(
    ways: Ways,
    ports: Sequence[FabricPort],
    gpu: str,
    link_index: Mapping[tuple[str, str], int],
    machines: Machines,
    *,
    leaves: bool,
) -> list[int]:
    """The links by which a GPU leaves, outermost first; those back are by which it is entered.  None if it can choose.

    A way in must be the way out backwards for that.
    """
    if len(ports) != 1:
        return []
    node, switch = ports[0].node, ports[0].switch
    inside = ways.only_walk_inside(gpu, node) if leaves else ways.only_walk_inside(node, gpu)
    if inside is None:
        return []
    walk = [*inside, switch] if leaves else [switch, *inside][::-1]
    hops = list(pairwise(walk))[::-1]
    if any(hop not in link_index or machines.back[link_index[hop]] < 0 for hop in hops):
        return []
    return [link_index[hop] for hop in hops]


def components(start: Ints, end: Ints, switch: NDArray[np.bool_]) -> Ints:
    """The lowest number among the nodes that a node is connected with past no switch."""
    label = np.arange(len(switch))
    inside = ~(switch[start] | switch[end])
    start, end = start[inside], end[inside]
    while True:
        before = label.copy()
        np.minimum.at(label, end, label[start])
        np.minimum.at(label, start, label[end])
        if (label == before).all():
            return label
