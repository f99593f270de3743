"""Accelerator: the routes of very many flows in arrays, proved for every policy; what has no form goes one by one.

A way inside a machine is found once for all; from switch to switch flows that are at one switch and bound for one
switch are looked at together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simcluster.base.arrays import Floats, Int32s, Ints, Numbers
from simcluster.base.link_columns import FlowsPerLink, PerLink
from simcluster.base.multiset_hash import compact, firsts, numbered, ordered
from simcluster.topology.access_paths import WHOLE, Spread, split
from simcluster.topology.policies import Flow, RoutingSpec
from simcluster.topology.turns import Ground

Pairs: TypeAlias = Mapping[tuple[int, int], int]
"""How many flows go from column to column."""
Rows: TypeAlias = tuple[Ints, Ints, Floats]
"""(flow, link, fraction) of every link that a flow crosses, in columns."""


class Paths:
    """Routes many flows on one cluster; ``spread(src, dst, number)`` routes a single one.

    ``walk`` gives the links from GPU to GPU of machine 0, if there is one way, which does not leave it.
    """

    def __init__(
        self,
        ground: Ground,
        policy: RoutingSpec,
        spread: Callable[[int, int, int], Spread],
        walk: Callable[[int, int], list[int] | None],
    ) -> None:
        self._machines, self._ends, self._hops, self._rows = ground.machines, ground.ends, ground.hops, ground.rows
        self._table_of = ground.table
        self._policy, self._spread, self._walk = policy, spread, walk
        paths = len(policy.picks(Flow(0, 0, 0, 0)))
        self._shares = [part / WHOLE for part in split(WHOLE, paths)] if paths else []  # none: every path has one

    def rows(self, src: Ints, dst: Ints, number: Ints) -> Rows:
        """The links of all flows, by flow."""
        parts: list[Rows] = []
        left = src != dst
        together = src // self._machines.size == dst // self._machines.size
        parts.append(self._inside(np.flatnonzero(left & together), src, dst, left))
        if not self._policy.pxn:
            parts.append(self._across(np.flatnonzero(left & ~together), src, dst, number, left))
        parts.append(one_by_one(self._spread, np.flatnonzero(left), src, dst, number))
        return _merged([part for part in parts if len(part[0])], len(src))

    def loads(
        self, table: Ints, pairs: Pairs, src: Ints, dst: Ints, rails: Sequence[tuple[int, int]], number: Ints
    ) -> FlowsPerLink | None:
        """Return how many flows cross every link.

        A row of ``table`` are GPUs of one machine: ``pairs`` of columns exchange flows in all of them, and on each of
        the ``rails``, (column, first number of a flow), flow ``number[i]`` goes from row ``src[i]`` to row ``dst[i]``,
        on another machine.  Ways inside machines and their ends are found once for all that send and receive equally
        often, so that only flows from leaf to leaf are gone through link by link; those that switches split evenly are
        counted by leaf.  None where a flow has several connections, or not all flows have a closed form.
        """
        machines = self._machines
        if len(self._shares) > 1 or self._policy.pxn:
            return None
        own, places = table[:, 0] // machines.size, table[0] % machines.size
        there = machines.gpus
        if len(own) < len(there) or (own != np.arange(len(there))).any():
            there = there.take(own, axis=0)
        if (places != np.arange(machines.size)[: len(places)]).any() or len(places) < machines.size:
            there = there[:, places]
        alike = (table == there).all() and np.bincount(own).max() == 1
        if not alike or (own[src] == own[dst]).any():
            return None
        kinds = [np.bincount(each, minlength=len(own)) for each in (src, dst)]  # sends and receives
        kind_of, which = compact(kinds[0] * (int(kinds[1].max(initial=0)) + 1) + kinds[1])
        some = firsts(which, len(kind_of))
        inside = self._in_machines(places, pairs, [each[some] for each in kinds], [at for at, _ in rails])
        crossed = self._from_leaf_to_leaf(own, places, (src, dst, number), rails)
        if inside is None or crossed is None:
            return None
        kind = np.full(machines.count, len(kind_of), dtype=np.int64)
        kind[own] = which
        kinds_of_leaves, of_leaves, rest = crossed
        values = [inside, *of_leaves]
        if self._shares:  # whole flows, which stand for themselves
            flows = np.arange(1 + max(int(each.max(initial=0)) for each in (*values, rest)), dtype=np.float64)
        else:
            flows = np.unique(np.concatenate([np.zeros(1), *(each.ravel() for each in values)]))
            values = [np.searchsorted(flows, each).astype(np.int32) for each in values]
        return FlowsPerLink(PerLink(self._rows, (kind, *kinds_of_leaves), tuple(values), rest), flows)

    def _in_machines(
        self, places: Ints, pairs: Pairs, kinds: Sequence[Ints], rails: Sequence[int]
    ) -> Int32s | None:  # fmt: skip
        """Flows on the links of machines of every kind, and of those that are not used: ``kinds`` send and receive so
        many on each of the rails."""
        machines = self._machines
        found = np.zeros((len(kinds[0]) + 1, machines.owned.shape[1]), dtype=np.int32)
        keys = {(a, b): int(places[a]) * machines.size + int(places[b]) for a, b in pairs}
        ways = machines.ways_inside(np.array(list(keys.values()), dtype=np.int64), self._walk)
        for pair, times in pairs.items():
            way = ways[keys[pair]]
            if way[0] < 0:
                return None
            found[:-1, way[way >= 0]] += times
        for place in places[rails]:
            for count, way in zip(kinds, (self._ends.out[place], self._ends.back[place]), strict=True):
                for column in way[way >= 0].tolist():
                    found[:-1, column] += count
        return found

    def _from_leaf_to_leaf(
        self, own: Ints, places: Ints, flows: tuple[Ints, Ints, Ints], rails: Sequence[tuple[int, int]]
    ) -> tuple[list[Ints], list[Any], Int32s] | None:
        """Return the flows on links between leaves: see ``loads``, and ``PerLink`` for kinds, values and rest."""
        machines, ends = self._machines, self._ends
        (kind, table), (src, dst, number) = ends.leaves, flows
        used = table[np.flatnonzero(np.bincount(kind[own]))]
        at = places[[column for column, _ in rails]]
        leaves = used[:, at]
        if (ends.part[leaves] != ends.part[leaves[:1]]).any():
            return None
        of_row = kind[own]
        some = np.flatnonzero(of_row[src] != of_row[dst])  # those of one kind stay below their leaves
        near, far = own[src[some]], own[dst[some]]
        leave, enter = table[kind[near]][:, at], table[kind[far]][:, at]
        going = leave != enter
        if not self._shares:
            return self._evenly(leave[going], enter[going])
        target = machines.gpus[far][:, at][going]
        numbers = number[some][:, None] + np.array([first for _, first in rails])
        columns = machines.gpus[near][:, at][going], target, ends.order[target], numbers[going]
        crossed = np.concatenate(
            [links for *_, links in self._over_fabric(columns, leave[going], enter[going])] or [src[:0]]
        )
        rows = self._rows
        first, *last = rows.ends
        between = np.zeros(len(rows.place) - first, dtype=np.int32)
        np.add.at(between, rows.place[crossed] - first, 1)
        *counts, rest = np.split(between, [end - first for end in last])
        values = [part.reshape(each.shape) for part, each in zip(counts, rows.tables[1:], strict=True)]
        return [np.arange(len(each)) for each in values], values, rest

    def _evenly(self, leave: Ints, enter: Ints) -> tuple[list[Ints], list[Any], Int32s] | None:
        """Return the flows on links between leaves where each leaf splits its flows evenly over its links up.

        None unless both leaves of every flow are linked to the same switches, and not to leaves, and sums are exact.
        """
        hops, rows = self._hops, self._rows
        sent, received = (np.bincount(each, minlength=hops.size) for each in (leave, enter))
        most = max(int(sent.max()), int(received.max()))
        below = (self._table_of[leave] > 0).all() and (hops.onto[leave] == hops.onto[enter]).all()
        if not below or most * WHOLE >= 1 << 53:
            return None
        kinds, values = [], []
        for number, table in enumerate(rows.tables[1:], start=1):
            own = self._table_of == number
            pairs, which = compact(sent[own] * (most + 1) + received[own])
            parts = np.array(split(WHOLE, table.shape[1] // 2)) / WHOLE
            kinds.append(which)
            values.append(np.concatenate([each[:, None] * parts for each in np.divmod(pairs, most + 1)], axis=1))
        return kinds, values, np.zeros(len(rows.rest), dtype=np.int32)

    # --- in a machine ------------------------------------------------------------------------------------------------

    def _inside(self, flows: Ints, src: Ints, dst: Ints, left: NDArray[np.bool_]) -> Rows:
        """Flows that stay in their machine; those done are taken from ``left``."""
        machines = self._machines
        key = src[flows] % machines.size * machines.size + dst[flows] % machines.size
        ways = machines.ways_inside(np.flatnonzero(np.bincount(key)), self._walk)
        known = ways[key, 0] >= 0
        if not known.all():
            flows, key = flows[known], key[known]
        left[flows] = False
        way = ways[key]
        link = machines.owned[(src[flows] // machines.size)[:, None], way].astype(np.int64)
        return _flat(flows, link, way >= 0, np.ones(way.shape[1]))

    # --- over the fabric ---------------------------------------------------------------------------------------------

    def _across(self, flows: Ints, src: Ints, dst: Ints, number: Ints, left: NDArray[np.bool_]) -> Rows:
        """Flows between machines that stay in one part of the fabric; those done are taken from ``left``."""
        ends, count = self._ends, len(src)
        leave, enter = (ends.leaf[gpus[flows]].astype(np.int64) for gpus in (src, dst))
        plain = ends.part[leave] == ends.part[enter]
        flows = flows[plain]
        left[flows] = False
        src, dst, number = src[flows], dst[flows], number[flows]
        columns = [*self._machines.links(src, ends.out).T, *self._machines.links(dst, ends.back).T]
        fractions = [1.0] * len(columns)
        columns_of_flow = src, dst, ends.order[dst], number
        for share, rest, crossed in self._over_fabric(columns_of_flow, leave[plain], enter[plain]):
            links = np.full(len(flows), -1, dtype=np.int64)
            links[rest] = crossed
            columns.append(links)
            fractions.append(share)
        table = np.stack(columns, axis=1)
        found = _flat(flows, table, table >= 0, np.array(fractions))
        if self._shares:
            return found
        return _merged([found, self._sprayed(flows, src, dst, leave[plain], enter[plain])], count)

    def _sprayed(self, flows: Ints, src: Ints, dst: Ints, leave: Ints, enter: Ints) -> Rows:
        """Return the links from leaf to leaf of flows that are split evenly at each switch.

        They are found once for each pair of leaves, and without a graph where both are below the same switches.
        """
        hops, machines = self._hops, self._machines
        which, some = numbered(leave * hops.size + enter)
        src, dst, near, far = src[some], dst[some], leave[some], enter[some]
        over, done = hops.onto[near], near == far
        begin, counts = np.zeros((2, len(some)), dtype=np.int64)
        links, fractions = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
        meets = ~done & (over == hops.onto[far]) & (hops.between(near, far) < 0)
        first = 0
        for kind in np.flatnonzero(np.bincount(over[meets])).tolist():
            those, table = np.flatnonzero(meets & (over == kind)), hops.neighbours[kind]
            up = hops.nth(near[those][:, None], np.arange(len(table)))
            way = np.concatenate([up, hops.between(table, far[those][:, None])], axis=1)
            begin[those], counts[those] = first + np.arange(len(those)) * way.shape[1], way.shape[1]
            parts = np.array(split(WHOLE, len(table))) / WHOLE
            links.append(way.ravel())
            fractions.append(np.tile(parts, 2 * len(those)))
            first += way.size
        for each in np.flatnonzero(~done & ~meets).tolist():
            ends = np.append(machines.links(src[[each]], self._ends.out), machines.links(dst[[each]], self._ends.back))
            spread = [part for part in self._spread(int(src[each]), int(dst[each]), 0) if part[0] not in ends]
            begin[each], counts[each] = first, len(spread)
            links.append(np.array([link for link, _ in spread], dtype=np.int64))
            fractions.append(np.array([fraction for _, fraction in spread]))
            first += len(spread)
        many = counts[which]
        row = np.arange(int(many.sum())) + np.repeat(begin[which] - (np.cumsum(many) - many), many)
        return np.repeat(flows, many), np.concatenate(links)[row], np.concatenate(fractions)[row]

    def _over_fabric(
        self, columns: Sequence[Numbers], leave: Ints, enter: Ints
    ) -> Iterator[tuple[float, Ints, Ints]]:  # fmt: skip
        """Step by step from leaf to leaf: the part of the bytes, which flows go on, and the links that they cross."""
        for path, share in enumerate(self._shares):
            rest, here = np.arange(len(leave)), leave
            while True:
                going = here != enter[rest]
                if not going.all():
                    rest, here = rest[going], here[going]
                if not len(rest):
                    break
                whole = len(rest) == len(leave)
                some = columns if whole else [column[rest] for column in columns]
                links, here = self._step(here, enter[rest], some, path)
                yield share, rest, links

    def _step(self, here: Ints, goal: Ints, columns: Sequence[Numbers], path: int) -> tuple[Ints, Ints]:
        """From each flow's switch the next link and switch on the way to its goal."""
        hops = self._hops
        links, onward = hops.between(here, goal), goal.copy()
        far = np.flatnonzero(links < 0)
        kinds, which = compact(hops.onto[here[far]] * len(hops.neighbours) + hops.onto[goal[far]])
        order = far[ordered(which)]
        for kind, rows in zip(kinds.tolist(), np.split(order, np.cumsum(np.bincount(which))[:-1]), strict=False):
            table = hops.onward(*divmod(kind, len(hops.neighbours)))
            turn = self._turns([column[rows] for column in columns], path, here[rows], len(table))
            onward[rows] = table[turn]
            links[rows] = hops.between(here[rows], onward[rows])
        return links, onward

    def _turns(self, columns: Sequence[Numbers], path: int, here: Ints, ways: int) -> Ints:
        """Which of the ways each flow goes on from its switch: the policy's arithmetic, on arrays.

        ``columns`` are the flows' fields (sender, receiver, order, number).
        """
        of_flow: Sequence[Any] = columns
        if self._policy.by_flow:  # they are hashed
            of_flow = [each.astype(np.uint64) for each in columns]
        position: Any = self._ends.position[here].astype(np.uint64)
        turn: Any = self._policy.picks(Flow(*of_flow))[path](position, ways)
        return np.broadcast_to(turn, len(here)).astype(np.int64)


def one_by_one(spread: Callable[[int, int, int], Spread], flows: Ints, src: Ints, dst: Ints, number: Ints) -> Rows:
    """The links of some of the flows."""
    rows = [
        (place, link, fraction)
        for place in flows.tolist()
        for link, fraction in spread(int(src[place]), int(dst[place]), int(number[place]))
    ]
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    flow, link = (np.array(column, dtype=np.int64) for column in columns[:2])
    return flow, link, np.array(columns[2], dtype=np.float64)


def _flat(flows: Ints, links: Ints, there: NDArray[np.bool_], fractions: Floats) -> Rows:
    """Rows of a table with one line per flow, ``links`` of which are ``there``; ``fractions`` of every column."""
    if there.all():
        return np.repeat(flows, links.shape[1]), links.ravel(), np.tile(fractions, len(flows))
    counts = there.sum(axis=1)
    return np.repeat(flows, counts), links[there], np.broadcast_to(fractions, there.shape)[there]


def _merged(parts: Sequence[Rows], flows: int) -> Rows:
    """Rows by flow, of parts that are so."""
    if len(parts) == 1:
        return parts[0]
    counts = [np.bincount(part[0], minlength=flows) for part in parts]
    total = sum(counts, np.zeros(flows, dtype=np.int64))
    begin, size = np.cumsum(total) - total, int(total.sum())
    flow, link, fraction = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64), np.empty(size)
    for part, count in zip(parts, counts, strict=True):
        place = np.arange(len(part[0])) + np.repeat(begin - (np.cumsum(count) - count), count)
        flow[place], link[place], fraction[place] = part
        begin = begin + count
    return flow, link, fraction
