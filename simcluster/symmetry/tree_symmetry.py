"""Symmetries of a regular fat tree: permutations of GPUs and links that map every route to a route.

A job whose replicas are all equal looks the same from each of them, if the cluster does; and one with a rank on every
GPU of a node looks the same from each rail. The conditions are checked here, in arrays: then one part of the cluster,
the *window*, shows the loads of all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Int32s, Ints, Numbers, unique_inverse
from simcluster.base.link_columns import LinkColumn, LinkValues
from simcluster.topology.cluster import Cluster
from simcluster.topology.regular_wiring import RegularWiring
from simcluster.topology.switch_links import ClusterColumns, EqualMachines

_BY_DESTINATION = ("static", "shortest", "adaptive")


class GpuPermutation(NamedTuple):
    """Permutation of GPUs: GPU number p of node m moves to GPU number ``place[p]`` of node ``machine[m]``."""

    machine: Ints
    place: Ints


@dataclass(frozen=True, eq=False)
class LinkImages:
    """Map from each link to its equivalent in the window (representative part of the job); -1 for unused links.

    ``wired`` is the healthy capacity of every link (B/s). In the ``_window`` is one GPU of all that take each other's
    places; a link of a node moves along with the GPU in place ``_owner`` of it.
    """

    image: LinkColumn
    wired: LinkValues
    _ground: ClusterColumns
    _window: GpuPermutation
    _owner: Ints

    @property
    def routes_agree_across_nodes(self) -> bool:
        """Whether every route inside a node that was looked up so far is the same in all nodes."""
        return all(len(way) for way in self._ground.machines.known.values())

    @cached_property
    def owner_gpus(self) -> Int32s:
        """For each link, a GPU that moves with the link under every shift; -1 for unused links."""
        ground, machines = self._ground, self._ground.machines
        used = np.flatnonzero(self._window.machine >= 0)
        gpus, leaf = machines.gpu_numbers[used], np.full(ground.hops.size, -1, dtype=np.int32)
        leaf[ground.ends.leaf[gpus]] = gpus
        found = np.full(len(self.wired), -1, dtype=np.int32)
        found[machines.machine_links[used]] = gpus[:, self._owner[machines.original_columns]]
        for number, table in enumerate(ground.rows.tables[1:], start=1):
            there = np.flatnonzero(ground.table == number)
            found[table[ground.row[there]]] = leaf[there, None]
        return found

    def links_move_with_gpus(self, turns: Sequence[Ints]) -> bool:
        """Return whether each link inside a node is shifted along with one of the two GPUs at the ends of its route.

        ``turns`` are how often GPUs are, step by step. Routes between nodes consist of the links of two nodes, and
        those up from their leaves.
        """
        machines, there = self._ground.machines, self._window.machine
        gpus = machines.gpu_numbers[np.unique(there[there >= 0])]
        pairs = [(*divmod(pair, machines.size), self._owner[way]) for pair, way in machines.known.items()]
        return all(
            ((times[:, link] == times[:, [one]]) | (times[:, link] == times[:, [other]])).all()
            for times in (each[gpus] for each in turns)
            for one, other, link in pairs
        )


def find_gpu_permutation(machines: EqualMachines, gpus: Numbers) -> GpuPermutation | None:
    """Return the permutation that moves used GPU i to ``gpus[i]``; None if it splits the GPUs of a node."""
    size, used = machines.size, -(-len(gpus) // machines.size)
    machine, place = np.full(machines.count, -1, dtype=np.int64), np.full(size, -1, dtype=np.int64)
    machine[:used] = gpus[::size] // size
    place[: min(size, len(gpus))] = gpus[:size] % size
    whole = len(gpus) // size
    full, rest = gpus[: whole * size].reshape(whole, size), gpus[whole * size :]
    first, onto = (machine[:used, None] * size).astype(gpus.dtype), place.astype(gpus.dtype)
    if (full != first[:whole] + onto).any() or (rest != first[whole:] + onto[: len(rest)]).any():
        return None
    return GpuPermutation(machine, place)


def find_part_map(part: Numbers, onto: Numbers) -> Ints | None:
    """Return the map of part numbers that takes each ``part[i]`` to ``onto[i]``; None if the map is ambiguous."""
    found = np.full(int(part.max(initial=-1)) + 1, -1, dtype=np.int64)
    found[part] = onto
    return found if (found[part] == onto).all() else None


def find_link_images(cluster: Cluster, steps: Sequence[Numbers], window: Numbers, count: int) -> LinkImages | None:
    """Return each link's equivalent in the window under shifts of GPUs; None if a shift changes a route.

    ``window[i]`` is the image of GPU i in the window, which has one of all ``count`` that take each other's places.
    None where that changes a route, a node, or a link's wired capacity or latency, and for a cluster that is not
    regular. Each route between used GPUs is turned into the route between the images of the GPUs: leaves are turned as
    their nodes are, all under the same top switches, which stay, and the policy picks the same of those.
    """
    regular = cluster.wiring
    if not isinstance(regular, RegularWiring) or not regular.one_fabric:
        return None
    policy, ground, per_host = regular.routing, regular.ground, regular.draft.per_host
    known = [step for gpus in (*steps, window) if (step := find_gpu_permutation(regular.machines, gpus)) is not None]
    if len(known) <= len(steps) or policy.kind not in _BY_DESTINATION or policy.pxn:
        return None
    *those, into = known
    used = np.flatnonzero(into.machine >= 0)
    if any(find_part_map(used // per_host, step.machine[used] // per_host) is None for step in those):
        return None
    links, onto = _map_node_links(regular, known), None
    for step in known:  # the window comes last: there leaves meet
        own, there = ground.ends.leaves.pair_rows(used, step.machine[used])
        onto = find_part_map(own, there[:, step.place])
        if onto is None or (step is not into and np.bincount(onto[onto >= 0]).max() > 1):
            return None
        if policy.kind == "static" and step is not into:
            own, there = ground.order.pair_rows(used, step.machine[used])
            if (own != there[:, step.place]).any():
                return None
    assert onto is not None
    below = np.flatnonzero(onto >= 0)
    near = onto[below]
    number, top = ground.table[below[0]], ground.hops.onto[below[0]]
    same = (ground.table[below] == number).all() and number > 0 and (ground.hops.onto[below] == top).all()
    if links is None or not same or len(below) != count * len(np.unique(near)):
        return None
    sort = ground.unlike[number - 1]
    if (sort[ground.row[below]] != sort[ground.row[near]]).any():
        return None
    become = _link_images_per_table(ground, into.machine[used], links[0], used, below, near)
    return LinkImages(become, regular.link_capacity, ground, into, links[1])


def _map_node_links(regular: RegularWiring, steps: Sequence[GpuPermutation]) -> tuple[Ints, Ints] | None:
    """Return each node link's equivalent in the window, and the index of the GPU that the link moves with.

    Links by which a GPU leaves move with it, everything else stays. None unless that brings links onto equal links, and
    as many of them onto each of the window as GPUs. The last of ``steps`` leads into the window.
    """
    ground, machines, window = regular.ground, regular.machines, steps[-1]
    columns = np.arange(machines.numbers.width)
    if all((step.place == np.arange(len(step.place))).all() for step in steps):
        return columns, np.zeros_like(columns)
    maps = [_map_link_columns(regular, step.place) for step in steps]
    links = machines.machine_links[0, np.stack([columns, machines.numbers.back[columns]])]
    kind = ground.kind[machines.numbers.sorts[links]]
    if any(to is None or (kind != kind[:, to]).any() for to in maps):
        return None
    *turns, found = [to for to in maps if to is not None]
    orbit = columns
    owner = np.where(found == columns, window.place.min(), -1)
    for _ in columns:  # until the lowest of all that take each other's places is known, and owners from the window on
        for to, step in zip(turns, steps[:-1], strict=True):
            orbit = np.minimum(orbit, orbit[to])
            owner[to] = np.where(owner[to] < 0, np.where(owner < 0, -1, step.place[owner]), owner[to])
    several = len(window.place) // len(np.unique(window.place))
    if (orbit[found] != orbit).any() or (np.bincount(found)[np.unique(found)] != several).any():
        return None
    return found, owner


def _map_link_columns(regular: RegularWiring, place: Ints) -> Ints | None:
    """Return where each of a node's links goes when its GPUs move to ``place``; None if a link goes to no link."""
    width = regular.machines.numbers.width
    ends = np.transpose(regular.link_end_nodes(regular.machines.machine_links[0])).tolist()
    ways = [[node for column in way if column >= 0 for node in ends[column]] for way in regular.ends.out.tolist()]
    to: dict[int, int] = {}
    for way, other in zip(ways, place.tolist(), strict=True):
        if other < 0 or len(way) != len(ways[other]):
            return None
        if any(to.setdefault(a, b) != b for a, b in zip(way, ways[other], strict=True)):
            return None
    column = {(a, b): number for number, (a, b) in enumerate(ends[:width])}
    found = np.array([column.get((to.get(a, a), to.get(b, b)), -1) for a, b in ends[:width]], dtype=np.int64)
    return None if (found < 0).any() else found


def _link_images_per_table(
    ground: ClusterColumns, machine: Ints, links: Ints, used: Ints, below: Ints, window: Ints
) -> LinkColumn:
    """Return the equivalent in the window of each link of these nodes and of the leaf switches ``below``."""
    rows, machines = ground.rows, ground.machines
    begin = machines.numbers.width
    column = links[machines.original_columns]
    outside = np.full(begin, -1, dtype=np.int64)
    outside[machines.original_columns[begin:]] = np.arange(begin, len(column))
    column[begin:] = outside[column[begin:]]
    number = int(ground.table[below[0]])
    (those, which), (near, of_leaf) = unique_inverse(machine), unique_inverse(ground.row[window])
    kinds = [np.full(len(table), 0, dtype=np.int64) for table in rows.tables]
    values = [np.full((1, table.shape[1]), -1, dtype=np.int32) for table in rows.tables]
    for table, own, onto, kept in (
        (0, used, which, rows.tables[0][those][:, column]),
        (number, ground.row[below], of_leaf, rows.tables[number][near]),
    ):
        kinds[table][own] = 1 + onto
        values[table] = np.concatenate([values[table], kept])
    return LinkColumn(rows, tuple(kinds), tuple(values), np.full(len(rows.rest), -1, dtype=np.int32))
