"""Arrays of a regular cluster's switch-to-switch links and GPU-to-leaf links, to route many flows at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcluster.base.arrays import (
    Int32s,
    Ints,
    Numbers,
    hash_rows,
    number_by_first_use,
    number_entries_by_owner,
    positions_of_items,
    unique_inverse,
)
from simcluster.base.link_columns import LinkRows
from simcluster.topology.draft import ClusterDraft
from simcluster.topology.numbering import LinkNumbers


@dataclass(frozen=True, eq=False)
class SwitchLinks:
    """Links between switches as arrays: each ``link`` leads to switch ``near``; sorted by the start switch.

    Those that begin at a switch are from ``first`` on. ``onto`` numbers the sets of switches that are next to each:
    ``neighbours`` of that number. ``number`` has that of every node from the ``lowest`` on, -1 for other networks'.
    """

    size: int
    near: Int32s
    link: Int32s
    first: Ints
    onto: Ints
    neighbours: list[Ints]
    lowest: int
    number: Int32s
    _known: dict[tuple[int, int], Ints] = field(default_factory=dict)

    @classmethod
    def from_link_numbers(cls, numbers: LinkNumbers, switches: Sequence[int], lowest: int) -> SwitchLinks:
        """Build the links between these switches, in this order; ``lowest`` is the node number of the first switch."""
        nodes = np.array(switches, dtype=np.int64) - lowest
        number = positions_of_items(nodes, len(numbers.starts) - 1).astype(np.int32)
        many = np.diff(numbers.starts)
        begins, counts = np.repeat(number, many), many[nodes]
        before = numbers.starts[nodes] - (np.cumsum(counts) - counts)
        link = np.arange(counts.sum(), dtype=np.int32) + np.repeat(before.astype(np.int32), counts)
        turned = numbers.turned[link - numbers.first_switch_link]
        among = np.flatnonzero(turned >= numbers.first_switch_link)
        near = begins[turned[among] - numbers.first_switch_link]
        if near.min(initial=0) < 0:  # a switch of another network
            among, near = among[near >= 0], near[near >= 0]
        link = link[among]
        start = begins[link - numbers.first_switch_link]
        first = np.concatenate([[0], np.cumsum(np.bincount(start, minlength=len(nodes)))])
        if ((near[1:] < near[:-1]) & (start[1:] == start[:-1])).any():
            order = np.lexsort((near, start))
            near, link = near[order], link[order]
        return cls(len(nodes), near, link, first, *_find_neighbour_sets(near, first), lowest, number)

    def switch_numbers(self, nodes: Int32s) -> Ints:
        """Return the switch numbers of these graph nodes."""
        return self.number[nodes - self.lowest].astype(np.int64)

    def connected_parts(self) -> Ints:
        """Return for each switch the number of its connected part of the fabric: the part's lowest switch number."""
        found = np.full(self.size, -1, dtype=np.int64)
        while (rest := np.flatnonzero(found < 0)).size:
            found[self._hops_to_goals(rest[:1]) < self.size] = rest[0]
        return found

    def next_switches(self, from_set: int, to_set: int) -> Ints:
        """Return the sorted next switches on shortest paths between switches with these two sets of neighbours."""
        if (from_set, to_set) not in self._known:
            near = self.neighbours[from_set]
            distances = self._hops_to_goals(self.neighbours[to_set])[near]
            self._known[from_set, to_set] = near[distances == distances.min()]
        return self._known[from_set, to_set]

    def _hops_to_goals(self, goals: Ints) -> Ints:
        """Return each switch's hops to the nearest switch in ``goals``; the number of switches if there is no path."""
        found = np.full(self.size, self.size, dtype=np.int64)
        frontier, hops = goals, 0
        while len(frontier):
            found[frontier] = hops
            hops += 1
            before = np.zeros(self.size, dtype=bool)
            for each in dict.fromkeys(self.onto[frontier].tolist()):
                before[self.neighbours[each]] = True
            frontier = np.flatnonzero(before & (found == self.size))
        return found

    def links_between(self, a: Ints, b: Ints) -> Ints:
        """Return the link from switch ``a[i]`` to switch ``b[i]``, for each i; -1 if there is none."""
        if not len(self.near):
            return np.full(len(a), -1, dtype=np.int64)
        codes, begin = self._neighbour_codes
        sets = self.onto[a]
        code = sets * self.size + b
        place = np.searchsorted(codes, code)
        return np.where(np.append(codes, -1)[place] == code, self.nth_links(a, place - begin[sets]), -1)

    def nth_links(self, a: Ints, index: Ints) -> Ints:
        """Return the link from each switch of ``a`` to its neighbour number ``index``."""
        found: Ints = self.link[np.minimum(self.first[a] + index, len(self.link) - 1)].astype(np.int64)
        return found

    def links_from(self, switches: Ints, count: int) -> Int32s:
        """Return the links that begin at these switches, one row per switch with ``count`` links."""
        found: Int32s = self.link[self.first[switches][:, None] + np.arange(count)]
        return found

    @cached_property
    def _neighbour_codes(self) -> tuple[Ints, Ints]:
        """Sorted integer codes of pairs (neighbour set, switch), and the index where the codes of each set begin."""
        begin = np.cumsum([0, *map(len, self.neighbours)])
        return np.concatenate([number * self.size + near for number, near in enumerate(self.neighbours)]), begin


def _find_neighbour_sets(near: Int32s, first: Ints) -> tuple[Ints, list[Ints]]:
    """Find the distinct sets of neighbours; return each switch's set number, and the list of sets."""
    known: dict[bytes, int] = {}
    neighbours: list[Ints] = []
    degrees = np.diff(first)
    sets = np.empty(len(degrees), dtype=np.int64)
    for degree in np.flatnonzero(np.bincount(degrees)).tolist():  # those with equally many at once
        switches = np.flatnonzero(degrees == degree)
        table = near[first[switches][:, None] + np.arange(degree)]
        kind, one = _find_equal_rows(table)
        numbers = []
        for row in table[one].astype(np.int64):
            numbers.append(known.setdefault(row.tobytes(), len(known)))
            neighbours += [row] * (len(known) - len(neighbours))
        sets[switches] = np.array(numbers)[kind]
    return sets, neighbours


@dataclass(frozen=True, eq=False)
class EqualMachines:
    """Equal machines with ``size`` GPUs each, and the link numbers of every machine."""

    count: int
    size: int
    numbers: LinkNumbers
    known: dict[int, Ints] = field(default_factory=dict)
    """Paths inside a machine that were requested so far, by pair (see ``paths_within_machine``); empty for no path."""

    @cached_property
    def gpu_numbers(self) -> Int32s:
        """GPU numbers as an array [machine, index in the machine]."""
        return np.arange(self.count * self.size, dtype=np.int32).reshape(self.count, self.size)

    def links_of_gpus(self, gpus: Numbers, columns: Ints) -> Int32s:
        """Return each GPU's links: entry ``columns[p]`` of its machine's links, for GPU p of a machine (-1: none)."""
        machine, place = np.divmod(gpus, self.size)
        own = columns[place]
        return np.where(own < 0, np.int32(-1), self.machine_links[machine[:, None], own])

    @cached_property
    def original_columns(self) -> Ints:
        """For each column of ``machine_links``: the column of the same link, or of the opposite direction's link."""
        return np.concatenate([np.arange(self.numbers.width), self.numbers.back[self.numbers.width :]])

    @property
    def machine_links(self) -> Int32s:
        """Link numbers per machine (row): links that begin in the machine, then the reverses of links that leave it."""
        return self.numbers.owned

    def paths_within_machine(self, pairs: Ints, find_path: Callable[[int, int], list[int] | None]) -> Ints:
        """Return the links of paths between two GPUs of a machine, one row per pair (a x size + b), padded with -1.

        A row of nothing but -1 is for a pair without one path that stays inside, or one not requested.
        """
        for pair in pairs.tolist():
            if pair not in self.known:
                self.known[pair] = np.array(find_path(*divmod(pair, self.size)) or [], dtype=np.int64)
        found = np.full((self.size**2, max(1, max(map(len, self.known.values()), default=0))), -1, dtype=np.int64)
        for pair, way in self.known.items():
            found[pair, : len(way)] = way
        return found


class MachineRows(NamedTuple):
    """Per-GPU values of all machines, with equal rows stored once: machine m has row ``kind[m]`` of ``table``."""

    kind: Ints
    table: Ints

    def pair_rows(self, machine: Ints, other: Ints) -> tuple[Ints, Ints]:
        """Return the distinct pairs of rows (of ``machine[i]`` and of ``other[i]``), as two tables."""
        pairs, _ = unique_inverse(self.kind[machine] * len(self.table) + self.kind[other])
        return self.table[pairs // len(self.table)], self.table[pairs % len(self.table)]

    @classmethod
    def from_rows(cls, rows: NDArray[np.integer[Any]]) -> MachineRows:
        """Build the table from one row of values per machine; each distinct row is stored once."""
        new = np.append(True, (rows[1:] != rows[:-1]).any(axis=1))  # many machines are as the one before
        kind, first = _find_equal_rows(rows[new])
        return cls(kind[np.cumsum(new) - 1], rows[new][first].astype(np.int64))


def _find_equal_rows(table: NDArray[np.integer[Any]]) -> tuple[Ints, Ints]:
    """Return a number for every row of a table, equal for equal rows, and the first row with each number."""
    if (table == table[:1]).all():
        return np.zeros(len(table), dtype=np.int64), np.zeros(1, dtype=np.int64)
    kind, first = number_by_first_use(hash_rows(table))
    if (table[first][kind] != table).any():  # different ones with equal sums
        kind = first = np.arange(len(table))
    return kind, first


@dataclass(frozen=True, eq=False)
class LeafLinks:
    """Links in both directions between every GPU and its leaf switch; ``leaf`` is the number of that switch.

    ``out`` and ``back`` have the columns of these links by place, -1 after the last; ``order`` is the place of the GPU
    in tree order, ``part`` numbers the parts of the fabric and ``position`` their places in natural order of all names,
    by switch. ``leaves`` are those of every machine.
    """

    part: Ints
    position: Ints
    order: Int32s
    leaf: Int32s
    out: Ints
    back: Ints
    leaves: MachineRows

    @classmethod
    def from_machine_paths(
        cls, machines: EqualMachines, paths: Sequence[Sequence[int]], nics: Sequence[str], draft: ClusterDraft,
        hops: SwitchLinks, position: Ints,
    ) -> LeafLinks:  # fmt: skip
        """Return the GPU-to-leaf links of all machines, from the paths (``paths``) and ``nics`` of machine 0."""
        numbers = machines.numbers
        out = np.full((len(paths), max(map(len, paths))), -1, dtype=np.int64)
        for place, way in enumerate(paths):
            out[place, : len(way)] = way
        back = np.where(out < 0, -1, numbers.back[out])
        enter = [numbers.came[column] for column in back[:, 0]]
        leaf = hops.switch_numbers(np.stack([draft.blocks[block].column_nodes(0, own) for block, own in enter], axis=1))
        nodes = list(dict.fromkeys(nics))  # by their first GPU
        first = [list(nics).index(node) for node in nodes]
        (of_node,), _ = number_entries_by_owner([[*leaf[:, first].T]], int(leaf.max()) + 1)  # by leaf, then first GPU
        order = np.stack([of_node[nodes.index(nic)] for nic in nics], axis=1)
        leaves = MachineRows.from_rows(leaf)
        return cls(hops.connected_parts(), position, order.ravel(), leaf.astype(np.int32).ravel(), out, back, leaves)


@dataclass(frozen=True, eq=False)
class ClusterColumns:
    """Arrays of a regular cluster's machines, leaf switches and links, in the layout of ``LinkColumn``.

    The first of ``rows``' tables has the ``EqualMachines.machine_links``. Each other has those of leaves
    with equally many links up, first all up and then their reverses; ``table`` and ``row`` give the place of each
    switch, -1 for those that are in none. ``order`` of GPUs is modulo the links up from their leaves; ``kind`` is for
    every sort of link what must be equal, ``unlike`` numbers the leaves' rows of links by it, table by table.
    """

    machines: EqualMachines
    ends: LeafLinks
    hops: SwitchLinks
    rows: LinkRows
    table: Ints
    row: Ints
    order: MachineRows
    kind: Numbers
    unlike: tuple[Ints, ...]

    @classmethod
    def from_parts(cls, machines: EqualMachines, ends: LeafLinks, hops: SwitchLinks, kind: Numbers) -> ClusterColumns:
        """Build the arrays from machines, GPU-to-leaf links, switch-to-switch links and kinds of link."""
        tables: list[Int32s] = []
        table, row = np.full((2, hops.size), -1, dtype=np.int64)
        degrees = np.diff(hops.first)
        below = np.zeros(hops.size, dtype=bool)
        below[ends.leaves.table] = True
        leaves = np.flatnonzero(below)
        near = np.array([below[neighbours].any() for neighbours in hops.neighbours], dtype=bool)
        leaves, numbers = leaves[~near[hops.onto[leaves]]], machines.numbers
        for degree in np.unique(degrees[leaves]).tolist():
            own = leaves[degrees[leaves] == degree]
            table[own], row[own] = 1 + len(tables), np.arange(len(own))
            up = hops.links_from(own, degree)
            tables.append(np.concatenate([up, numbers.turned[up - numbers.first_switch_link]], axis=1))
        rows = LinkRows.from_tables([machines.machine_links, *tables], len(numbers.sorts))
        _ = rows.ascending_tables, rows.table_ends  # of the cluster, and not of who turns it first
        up = np.maximum(1, degrees).astype(np.int32)[ends.leaf]
        order = MachineRows.from_rows((ends.order.astype(np.int32) % up).reshape(machines.gpu_numbers.shape))
        unlike = [MachineRows.from_rows(kind[machines.numbers.sorts[own]]).kind for own in tables]
        return cls(machines, ends, hops, rows, table, row, order, kind, tuple(unlike))
