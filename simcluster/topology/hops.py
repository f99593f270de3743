"""Links between switches in arrays, and the links by which equal machines' GPUs reach them, to route many flows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcluster.base.arrays import Int32s, Ints, Numbers, compact, hash_rows, number_by_owner, position_of, renumber
from simcluster.base.link_columns import LinkRows
from simcluster.topology.draft import Draft
from simcluster.topology.numbering import LinkNumbers


@dataclass(frozen=True, eq=False)
class SwitchLinks:
    """Links between switches in arrays: each ``link`` leads to switch ``near``, sorted by the switch where it begins.

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
    def of(cls, numbers: LinkNumbers, switches: Sequence[int], lowest: int) -> SwitchLinks:
        """Return the links between these switches, numbered in this order; ``lowest`` is the first switch's node."""
        nodes = np.array(switches, dtype=np.int64) - lowest
        number = position_of(nodes, len(numbers.starts) - 1).astype(np.int32)
        many = np.diff(numbers.starts)
        begins, counts = np.repeat(number, many), many[nodes]
        before = numbers.starts[nodes] - (np.cumsum(counts) - counts)
        link = np.arange(counts.sum(), dtype=np.int32) + np.repeat(before.astype(np.int32), counts)
        turned = numbers.turned[link - numbers.first]
        among = np.flatnonzero(turned >= numbers.first)
        near = begins[turned[among] - numbers.first]
        if near.min(initial=0) < 0:  # a switch of another network
            among, near = among[near >= 0], near[near >= 0]
        link = link[among]
        start = begins[link - numbers.first]
        first = np.concatenate([[0], np.cumsum(np.bincount(start, minlength=len(nodes)))])
        if ((near[1:] < near[:-1]) & (start[1:] == start[:-1])).any():
            order = np.lexsort((near, start))
            near, link = near[order], link[order]
        return cls(len(nodes), near, link, first, *_number_neighbour_sets(near, first), lowest, number)

    def switches(self, nodes: Int32s) -> Ints:
        """Return the switch numbers of these graph nodes."""
        return self.number[nodes - self.lowest].astype(np.int64)

    def parts(self) -> Ints:
        """Return for every switch the lowest number of the switches that can reach each other with it."""
        found = np.full(self.size, -1, dtype=np.int64)
        while (rest := np.flatnonzero(found < 0)).size:
            found[self._hops_to_goals(rest[:1]) < self.size] = rest[0]
        return found

    def onward(self, here: int, goal: int) -> Ints:
        """Return the switches after neighbour set ``here`` on shortest paths to neighbour set ``goal``, sorted."""
        if (here, goal) not in self._known:
            near = self.neighbours[here]
            distances = self._hops_to_goals(self.neighbours[goal])[near]
            self._known[here, goal] = near[distances == distances.min()]
        return self._known[here, goal]

    def _hops_to_goals(self, goals: Ints) -> Ints:
        """Return the hops from every switch to the nearest goal; the number of switches where there is no path."""
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

    def between(self, a: Ints, b: Ints) -> Ints:
        """Return the link from each switch of ``a`` to that of ``b``, -1 if there is none."""
        if not len(self.near):
            return np.full(len(a), -1, dtype=np.int64)
        codes, begin = self._neighbour_codes
        sets = self.onto[a]
        code = sets * self.size + b
        place = np.searchsorted(codes, code)
        return np.where(np.append(codes, -1)[place] == code, self.nth(a, place - begin[sets]), -1)

    def nth(self, a: Ints, turn: Ints) -> Ints:
        """Return the link from each switch of ``a`` to its neighbour number ``turn``."""
        found: Ints = self.link[np.minimum(self.first[a] + turn, len(self.link) - 1)].astype(np.int64)
        return found

    def all_from(self, switches: Ints, count: int) -> Int32s:
        """Return all links from these switches, one row per switch with ``count`` neighbours."""
        found: Int32s = self.link[self.first[switches][:, None] + np.arange(count)]
        return found

    @cached_property
    def _neighbour_codes(self) -> tuple[Ints, Ints]:
        """Ascending code of every switch in every neighbour set, and where the codes of each set begin."""
        begin = np.cumsum([0, *map(len, self.neighbours)])
        return np.concatenate([number * self.size + near for number, near in enumerate(self.neighbours)]), begin


def _number_neighbour_sets(near: Int32s, first: Ints) -> tuple[Ints, list[Ints]]:
    """Return the neighbour set number of every switch, and the distinct sets."""
    known: dict[bytes, int] = {}
    neighbours: list[Ints] = []
    degrees = np.diff(first)
    sets = np.empty(len(degrees), dtype=np.int64)
    for degree in np.flatnonzero(np.bincount(degrees)).tolist():  # those with equally many at once
        switches = np.flatnonzero(degrees == degree)
        table = near[first[switches][:, None] + np.arange(degree)]
        kind, one = _number_rows(table)
        numbers = []
        for row in table[one].astype(np.int64):
            numbers.append(known.setdefault(row.tobytes(), len(known)))
            neighbours += [row] * (len(known) - len(neighbours))
        sets[switches] = np.array(numbers)[kind]
    return sets, neighbours


@dataclass(frozen=True, eq=False)
class Machines:
    """Equal machines with ``size`` GPUs each, and the numbers of the links of each machine."""

    count: int
    size: int
    numbers: LinkNumbers
    known: dict[int, Ints] = field(default_factory=dict)
    """The ways inside a machine that have been asked for so far, by pair: as ``ways_inside``; empty for none."""

    @cached_property
    def gpus(self) -> Int32s:
        """GPU numbers by machine (row) and place in the machine (column)."""
        return np.arange(self.count * self.size, dtype=np.int32).reshape(self.count, self.size)

    def links(self, gpus: Numbers, columns: Ints) -> Int32s:
        """Return links of some GPUs: those in the ``columns`` of each GPU's place; -1 for no link."""
        machine, place = np.divmod(gpus, self.size)
        own = columns[place]
        return np.where(own < 0, np.int32(-1), self.owned[machine[:, None], own])

    @cached_property
    def origin(self) -> Ints:
        """For every column of ``owned``, the column of the link itself, or of the link that it reverses."""
        return np.concatenate([np.arange(self.numbers.width), self.numbers.back[self.numbers.width :]])

    @property
    def owned(self) -> Int32s:
        """Links of every machine (row): those that begin in it, then the reverses of those that end outside."""
        return self.numbers.owned

    def ways_inside(self, pairs: Ints, walk: Callable[[int, int], list[int] | None]) -> Ints:
        """Return the links of paths between pairs of places (place x size + place): a row each, -1 after the last.

        A row of nothing but -1 is for a pair without one path that stays inside, or one not requested.
        """
        for pair in pairs.tolist():
            if pair not in self.known:
                self.known[pair] = np.array(walk(*divmod(pair, self.size)) or [], dtype=np.int64)
        found = np.full((self.size**2, max(1, max(map(len, self.known.values()), default=0))), -1, dtype=np.int64)
        for pair, way in self.known.items():
            found[pair, : len(way)] = way
        return found


class ByMachine(NamedTuple):
    """Values of GPUs by machine, where many machines share a row: machine m has row ``kind[m]`` of ``table``."""

    kind: Ints
    table: Ints

    def moved(self, machine: Ints, onto: Ints) -> tuple[Ints, Ints]:
        """Return the distinct rows of some machines, and the values of the GPUs that take their places."""
        pairs, _ = compact(self.kind[machine] * len(self.table) + self.kind[onto])
        return self.table[pairs // len(self.table)], self.table[pairs % len(self.table)]

    @classmethod
    def of(cls, rows: NDArray[np.integer[Any]]) -> ByMachine:
        """Return the values from a table with one row per machine, each distinct row stored once."""
        new = np.append(True, (rows[1:] != rows[:-1]).any(axis=1))  # many machines are as the one before
        kind, first = _number_rows(rows[new])
        return cls(kind[np.cumsum(new) - 1], rows[new][first].astype(np.int64))


def _number_rows(table: NDArray[np.integer[Any]]) -> tuple[Ints, Ints]:
    """Return a number for every row of a table, equal for equal rows, and the first row of each number."""
    if (table == table[:1]).all():
        return np.zeros(len(table), dtype=np.int64), np.zeros(1, dtype=np.int64)
    kind, first = renumber(hash_rows(table))
    if (table[first][kind] != table).any():  # different ones with equal sums
        kind = first = np.arange(len(table))
    return kind, first


@dataclass(frozen=True, eq=False)
class LeafLinks:
    """Links between every GPU and its leaf switch, in both directions; ``leaf`` is the switch's number.

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
    leaves: ByMachine

    @classmethod
    def of(
        cls, machines: Machines, ways: Sequence[Sequence[int]], nics: Sequence[str], draft: Draft, hops: SwitchLinks,
        position: Ints,
    ) -> LeafLinks:  # fmt: skip
        """Return the links to and from leaves, given machine 0's: ``ways`` (columns from each leaf on) and ``nics``."""
        numbers = machines.numbers
        out = np.full((len(ways), max(map(len, ways))), -1, dtype=np.int64)
        for place, way in enumerate(ways):
            out[place, : len(way)] = way
        back = np.where(out < 0, -1, numbers.back[out])
        enter = [numbers.came[column] for column in back[:, 0]]
        leaf = hops.switches(np.stack([draft.blocks[block].column(0, column) for block, column in enter], axis=1))
        nodes = list(dict.fromkeys(nics))  # by their first GPU
        first = [list(nics).index(node) for node in nodes]
        (of_node,), _ = number_by_owner(
            [[*leaf[:, first].T]], int(leaf.max()) + 1
        )  # leaf by leaf, then by the first GPU
        order = np.stack([of_node[nodes.index(nic)] for nic in nics], axis=1)
        return cls(hops.parts(), position, order.ravel(), leaf.astype(np.int32).ravel(), out, back, ByMachine.of(leaf))


@dataclass(frozen=True, eq=False)
class ClusterColumns:
    """Column arrays of the machines, leaf switches and links of a regular cluster (layout: see ``PerLink``).

    The first of ``rows``' tables has the links of machines (``Machines.owned``). Each other one has those of leaves
    with equally many links up, first all up and then their reverses; ``table`` and ``row`` give the place of each
    switch, -1 for those that are in none. ``order`` of GPUs is modulo the links up from their leaves; ``kind`` is for
    every sort of link what must be equal, ``unlike`` numbers the leaves' rows of links by it, table by table.
    """

    machines: Machines
    ends: LeafLinks
    hops: SwitchLinks
    rows: LinkRows
    table: Ints
    row: Ints
    order: ByMachine
    kind: Numbers
    unlike: tuple[Ints, ...]

    @classmethod
    def of(cls, machines: Machines, ends: LeafLinks, hops: SwitchLinks, kind: Numbers) -> ClusterColumns:
        """Return the column arrays of a cluster with these machines, links to leaves, and links between switches."""
        tables: list[Int32s] = []
        table, row = np.full((2, hops.size), -1, dtype=np.int64)
        degrees = np.diff(hops.first)
        below = np.zeros(hops.size, dtype=bool)
        below[ends.leaves.table] = True
        leaves = np.flatnonzero(below)
        near = np.array([below[neighbours].any() for neighbours in hops.neighbours], dtype=bool)
        leaves = leaves[~near[hops.onto[leaves]]]
        for degree in np.unique(degrees[leaves]).tolist():
            own = leaves[degrees[leaves] == degree]
            table[own], row[own] = 1 + len(tables), np.arange(len(own))
            up = hops.all_from(own, degree)
            tables.append(np.concatenate([up, machines.numbers.turned[up - machines.numbers.first]], axis=1))
        numbers = machines.numbers
        rows = LinkRows.from_tables([machines.owned, *tables], len(numbers.sorts))
        _ = rows.ascending, rows.ends  # of the cluster, and not of who turns it first
        up = np.maximum(1, degrees).astype(np.int32)[ends.leaf]
        order = ByMachine.of((ends.order.astype(np.int32) % up).reshape(machines.gpus.shape))
        unlike = [ByMachine.of(kind[machines.numbers.sorts[own]]).kind for own in tables]
        return cls(machines, ends, hops, rows, table, row, order, kind, tuple(unlike))
