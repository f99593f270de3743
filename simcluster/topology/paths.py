"""Accelerator: the routes of very many flows in arrays, proved for every policy; what has no form goes one by one.

A way inside a machine is found once for all; from switch to switch flows that are at one switch and bound for one
switch are looked at together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simcluster.base.arrays import Floats, Ints, Numbers, compact, numbered, ordered
from simcluster.base.link_columns import PerLink, TreeFlows
from simcluster.topology.access_paths import WHOLE, Spread, split
from simcluster.topology.hops import Ground
from simcluster.topology.policies import Flow, RoutingSpec

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
        """Return the links of all flows, by flow."""
        size, left = self._machines.size, src != dst
        together = src // size == dst // size
        parts = [self._inside(np.flatnonzero(left & together), src, dst, left)]
        if not self._policy.pxn:
            parts.append(self._across(np.flatnonzero(left & ~together), src, dst, number, left))
        parts.append(one_by_one(self._spread, np.flatnonzero(left), src, dst, number))
        return _merged([part for part in parts if len(part[0])] or parts[:1])

    def loads(self, flows: TreeFlows) -> PerLink | None:
        """Return how many flows cross every link.

        Ways inside machines and their ends are found once for all that send and receive equally often, so that only
        flows from leaf to leaf are gone through link by link; those that switches split evenly are counted by leaf.
        None where a flow has several connections, or not all flows have a closed form.
        """
        size, table = self._machines.size, flows.table
        own, places = table[:, 0] // size, table[0] % size
        several = len(self._shares) > 1 or self._policy.pxn or np.bincount(own).max() > 1
        if several or (table != (own * size)[:, None] + places).any():
            return None
        sent, received = (np.bincount(each, minlength=len(own)) for each in (flows.source, flows.target))
        most = int(received.max(initial=0)) + 1
        pairs, which = compact(sent * most + received)
        inside = self._in_machines(flows, places, np.divmod(pairs, most))
        crossed = self._from_leaf_to_leaf(flows, own, places)
        if inside is None or crossed is None:
            return None
        kind = np.full(self._machines.count, len(pairs), dtype=np.int64)
        kind[own] = which
        kinds_of_leaves, of_leaves, rest = crossed
        return PerLink(self._rows, (kind, *kinds_of_leaves), (inside, *of_leaves), rest)

    def _in_machines(self, flows: TreeFlows, places: Ints, kinds: Sequence[Ints]) -> Floats | None:
        """Flows on the links of machines of every kind, and of those that are not used: ``kinds`` send and receive so
        many on each of the rails."""
        machines = self._machines
        found = np.zeros((len(kinds[0]) + 1, machines.owned.shape[1]))
        ends = places[np.array(list(flows.pairs), dtype=np.int64).reshape(-1, 2)]
        keys = ends[:, 0] * machines.size + ends[:, 1]
        ways = machines.ways_inside(keys, self._walk)[keys]
        if (ways[:, 0] < 0).any():
            return None
        for way, times in zip(ways, flows.pairs.values(), strict=True):
            found[:-1, way[way >= 0]] += times
        for column, _ in flows.rails:
            for count, links in zip(kinds, (self._ends.out, self._ends.back), strict=True):
                found[:-1, links[places[column]][links[places[column]] >= 0]] += count[:, None]
        return found

    def _from_leaf_to_leaf(
        self, flows: TreeFlows, own: Ints, places: Ints
    ) -> tuple[list[Ints], list[Floats], Floats] | None:
        """Return the flows on links between leaves: see ``PerLink`` for kinds, values and rest."""
        machines, ends, rows = self._machines, self._ends, self._rows
        kind, table = ends.leaves
        first_at, number = np.array(flows.rails, dtype=np.int64).T
        at = places[first_at]
        some = np.flatnonzero(kind[own[flows.source]] != kind[own[flows.target]])  # others stay below their leaves
        near, far = own[flows.source[some]], own[flows.target[some]]
        leave, enter = table[kind[near]][:, at], table[kind[far]][:, at]
        if (ends.part[leave] != ends.part[enter]).any():
            return None
        going = leave != enter
        leave, enter = leave[going], enter[going]
        if not self._shares:
            return self._evenly(leave, enter)
        src, dst = (machines.gpus[each][:, at][going] for each in (near, far))
        columns: list[Numbers] = [src, dst, ends.order[dst], (flows.number[some][:, None] + number)[going]]
        first, *last = rows.ends
        between = np.zeros(len(rows.place) - first)
        for *_, links in self._over_fabric(columns, leave, enter):
            between += np.bincount(rows.place[links] - first, minlength=len(between))
        *counts, rest = np.split(between, [end - first for end in last])
        values = [part.reshape(each.shape) for part, each in zip(counts, rows.tables[1:], strict=True)]
        return [np.arange(len(each)) for each in values], values, rest

    def _evenly(self, leave: Ints, enter: Ints) -> tuple[list[Ints], list[Floats], Floats] | None:
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
        return kinds, values, np.zeros(len(rows.rest))

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
        ends = self._ends
        leave, enter = (ends.leaf[gpus[flows]].astype(np.int64) for gpus in (src, dst))
        plain = ends.part[leave] == ends.part[enter]
        flows = flows[plain]
        left[flows] = False
        src, dst, number = src[flows], dst[flows], number[flows]
        columns = [*self._machines.links(src, ends.out).T, *self._machines.links(dst, ends.back).T]
        fractions, leave, enter = [1.0] * len(columns), leave[plain], enter[plain]
        for share, rest, crossed in self._over_fabric((src, dst, ends.order[dst], number), leave, enter):
            columns.append(np.full(len(flows), -1, dtype=np.int64))
            columns[-1][rest] = crossed
            fractions.append(share)
        table = np.stack(columns, axis=1)
        found = _flat(flows, table, table >= 0, np.array(fractions))
        return found if self._shares else _merged([found, self._sprayed(flows, src, dst, leave, enter)])

    def _sprayed(self, flows: Ints, src: Ints, dst: Ints, leave: Ints, enter: Ints) -> Rows:
        """Return the links from leaf to leaf of flows that are split evenly at each switch.

        They are found once for each pair of leaves, and without a graph where both are below the same switches.
        """
        hops = self._hops
        which, some = numbered(leave * hops.size + enter)
        near, far = leave[some], enter[some]
        over, done = hops.onto[near], near == far
        meets = ~done & (over == hops.onto[far]) & (hops.between(near, far) < 0)
        others = np.flatnonzero(~done & ~meets)
        pair, link, fraction = one_by_one(self._spread, others, src[some], dst[some], np.zeros_like(some))
        inner = self._rows.place[link] >= self._rows.ends[0]
        parts = [(pair[inner], link[inner], fraction[inner])]
        for kind in np.flatnonzero(np.bincount(over[meets])).tolist():
            those, table = np.flatnonzero(meets & (over == kind)), hops.neighbours[kind]
            up = hops.nth(near[those][:, None], np.arange(len(table)))
            way = np.concatenate([up, hops.between(table, far[those][:, None])], axis=1)
            shares = np.tile(np.array(split(WHOLE, len(table))) / WHOLE, 2 * len(those))
            parts.append((np.repeat(those, way.shape[1]), way.ravel(), shares))
        pair, link, fraction = _merged(parts)
        counts = np.bincount(pair, minlength=len(some))
        many = counts[which]
        before = (np.cumsum(counts) - counts)[which] - (np.cumsum(many) - many)
        row = np.arange(int(many.sum())) + np.repeat(before, many)
        return np.repeat(flows, many), link[row], fraction[row]

    def _over_fabric(
        self, columns: Sequence[Numbers], leave: Ints, enter: Ints
    ) -> Iterator[tuple[float, Ints, Ints]]:  # fmt: skip
        """Generate step by step from leaf to leaf the part of the bytes, the flows that go on, and links crossed.

        ``columns`` are the flows' fields (sender, receiver, order, number).
        """
        if self._policy.by_flow:  # they are hashed
            columns = [each.astype(np.uint64) for each in columns]
        for path, share in enumerate(self._shares):
            rest, here = np.arange(len(leave)), leave
            while True:
                going = here != enter[rest]
                if not going.all():
                    rest, here = rest[going], here[going]
                if not len(rest):
                    break
                links, here = self._step(here, enter[rest], columns, rest, path)
                yield share, rest, links

    def _step(
        self, here: Ints, goal: Ints, columns: Sequence[Numbers], flows: Ints, path: int
    ) -> tuple[Ints, Ints]:  # fmt: skip
        """Return the next link and switch on the way of each of these flows from its switch to its goal.

        Which of several ways a flow takes is the policy's arithmetic, on arrays.
        """
        hops = self._hops
        links, onward = hops.between(here, goal), goal.copy()
        far = np.flatnonzero(links < 0)
        kinds, which = compact(hops.onto[here[far]] * len(hops.neighbours) + hops.onto[goal[far]])
        order = far[ordered(which)]
        for kind, rows in zip(kinds.tolist(), np.split(order, np.cumsum(np.bincount(which))[:-1]), strict=False):
            table = hops.onward(*divmod(kind, len(hops.neighbours)))
            of_flow: Sequence[Any] = [column[flows[rows]] for column in columns]
            position: Any = self._ends.position[here[rows]].astype(np.uint64)
            turn: Any = self._policy.picks(Flow(*of_flow))[path](position, len(table))
            onward[rows] = table[np.broadcast_to(turn, len(rows)).astype(np.int64)]
            links[rows] = hops.between(here[rows], onward[rows])
        return links, onward


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


def _merged(parts: Sequence[Rows]) -> Rows:
    """Rows of all parts by flow, those of a flow as they come."""
    if len(parts) == 1:
        return parts[0]
    flow, link, fraction = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(flow, kind="stable")
    return flow[order], link[order], fraction[order]
