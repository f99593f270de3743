"""Accelerator: the routes of very many flows in arrays, proved for every policy; what has no form goes one by one.

A way inside a machine is found once for all; from switch to switch flows that are at one switch and bound for one
switch are looked at together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simcluster.base.arrays import Few, Floats, Ints
from simcluster.base.link_columns import PerLink
from simcluster.base.multiset_hash import compact, firsts, numbered
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
    ) -> PerLink | None:
        """How many flows cross every link.

        A row of ``table`` are GPUs of one machine: ``pairs`` of columns exchange flows in all of them, and on each of
        the ``rails``, (column, first number of a flow), flow ``number[i]`` goes from row ``src[i]`` to row ``dst[i]``,
        on another machine.  Ways inside machines and their ends are found once for all that send and receive equally
        often, so that only flows from leaf to leaf are gone through link by link.  None where flows are split, or not
        all in closed form.
        """
        machines = self._machines
        if self._shares != [1.0] or self._policy.pxn:
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
        inside = self._in_machines(table[0], places, pairs, [each[some] for each in kinds], [at for at, _ in rails])
        crossed = self._from_leaf_to_leaf(own, places, (src, dst, number), rails)
        if inside is None or crossed is None:
            return None
        rows = self._rows
        kind = np.full(machines.count, len(kind_of), dtype=np.int64)
        kind[own] = which
        first, *ends = rows.ends
        between = np.zeros(rows.size - first, dtype=np.int32)
        np.add.at(between, rows.places(crossed) - first, 1)
        *leaves, rest = np.split(between, [end - first for end in ends])
        values = [part.reshape(each.shape) for part, each in zip(leaves, rows.tables[1:], strict=True)]
        return PerLink(rows, (kind, *(np.arange(len(each)) for each in values)), (inside, *values), rest)

    def _in_machines(
        self, gpus: Ints, places: Ints, pairs: Pairs, kinds: Sequence[Ints], rails: Sequence[int]
    ) -> Few | None:
        """Flows on the links of machines of every kind, and of those that are not used: ``kinds`` send and receive so
        many on each of the rails; ``gpus`` and their places are of one machine."""
        machines, ends, rows = self._machines, self._ends, self._rows
        columns = rows.tables[0].shape[1]
        found = np.zeros((len(kinds[0]) + 1, columns), dtype=np.int32)
        keys = {(a, b): int(places[a]) * machines.size + int(places[b]) for a, b in pairs}
        ways = machines.ways_inside(np.array(list(keys.values()), dtype=np.int64), self._walk)
        for pair, times in pairs.items():
            way = ways[keys[pair]]
            if way[0] < 0:
                return None
            found[:-1, way[way >= 0]] += times
        for rail in rails:
            for count, links in zip(kinds, (ends.out_links, ends.in_links), strict=True):
                own = links[gpus[rail]]
                place = rows.places(own[own >= 0])
                if (place >= rows.ends[0]).any():
                    return None
                for column in (place % columns).tolist():
                    found[:-1, column] += count
        return found

    def _from_leaf_to_leaf(
        self, own: Ints, places: Ints, flows: tuple[Ints, Ints, Ints], rails: Sequence[tuple[int, int]]
    ) -> Ints | None:
        """The links between leaves that flows cross, as often as they do: see ``loads``."""
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
        target = machines.gpus[far][:, at][going]
        numbers = number[some][:, None] + np.array([first for _, first in rails])
        columns = machines.gpus[near][:, at][going], target, ends.order[target], numbers[going]
        return np.concatenate(
            [links for *_, links in self._over_fabric(columns, leave[going], enter[going])] or [src[:0]]
        )

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
        link = machines.owned.at((src[flows] // machines.size)[:, None], way).astype(np.int64)
        return _flat(flows, link, way >= 0, np.ones(way.shape[1]))

    # --- over the fabric ---------------------------------------------------------------------------------------------

    def _across(self, flows: Ints, src: Ints, dst: Ints, number: Ints, left: NDArray[np.bool_]) -> Rows:
        """Flows between machines that stay in one part of the fabric; those done are taken from ``left``."""
        ends, count = self._ends, len(src)
        leave, enter = ends.leaf[src[flows]], ends.leaf[dst[flows]]
        plain = ends.part[leave] == ends.part[enter]
        flows = flows[plain]
        left[flows] = False
        src, dst, number = src[flows], dst[flows], number[flows]
        columns = [*ends.out_links[src].T, *ends.in_links[dst].T]
        fractions = [1.0] * len(columns)
        columns_of_flow = (src, dst, ends.order[dst], number)
        for share, rest, crossed in self._over_fabric(columns_of_flow, leave[plain], enter[plain]):
            links = np.full(len(flows), -1, dtype=np.int64)
            links[rest] = crossed
            columns.append(links)
            fractions.append(share)
        table = np.stack(columns, axis=1)
        found = _flat(flows, table, table >= 0, np.array(fractions))
        if self._shares:
            return found
        return _merged([found, self._sprayed(flows, src, dst, leave[plain] * self._hops.size + enter[plain])], count)

    def _sprayed(self, flows: Ints, src: Ints, dst: Ints, key: Ints) -> Rows:
        """The links from leaf to leaf of flows that are split evenly at each switch: alike for all with one ``key``."""
        which, firsts_of = numbered(key)
        ways = []
        for first in firsts_of.tolist():
            spread = self._spread(int(src[first]), int(dst[first]), 0)
            ends = {*self._ends.out_links[src[first]].tolist(), *self._ends.in_links[dst[first]].tolist()}
            ways.append([each for each in spread if each[0] not in ends])
        links, fractions = np.array([each for way in ways for each in way]).reshape(-1, 2).T
        counts = np.array([len(way) for way in ways], dtype=np.int64)
        begin, many = (np.cumsum(counts) - counts)[which], counts[which]
        row = np.arange(int(many.sum())) + np.repeat(begin - (np.cumsum(many) - many), many)
        return np.repeat(flows, many), links.astype(np.int64)[row], fractions[row]

    def _over_fabric(
        self, columns: Sequence[Ints], leave: Ints, enter: Ints
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

    def _step(self, here: Ints, goal: Ints, columns: Sequence[Ints], path: int) -> tuple[Ints, Ints]:
        """From each flow's switch the next link and switch on the way to its goal."""
        hops = self._hops
        links, onward = hops.between(here, goal), goal.copy()
        far = np.flatnonzero(links < 0)
        if not len(far):
            return links, onward
        over = hops.onto[here[far]]
        meets = over == hops.onto[goal[far]]  # all neighbours of one are neighbours of the other
        kinds = np.flatnonzero(np.bincount(over[meets])).tolist()
        for kind in kinds:
            rows = far if meets.all() and len(kinds) == 1 else far[meets & (over == kind)]
            table = hops.neighbours[kind]
            turn = self._turns([column[rows] for column in columns], path, here[rows], len(table))
            onward[rows] = table[turn]
            links[rows] = hops.nth(here[rows], turn)
        far = far[~meets]
        if not len(far):
            return links, onward
        keys = here[far] * hops.size + goal[far]
        order = np.argsort(keys, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
            some = far[rows]
            table = hops.onward(int(here[some[0]]), int(goal[some[0]]))
            turn = self._turns([column[some] for column in columns], path, here[some], len(table))
            onward[some] = table[turn]
            links[some] = hops.between(here[some], onward[some])
        return links, onward

    def _turns(self, columns: Sequence[Ints], path: int, here: Ints, ways: int) -> Ints:
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
