"""Fast path: route many flows at once in arrays, for every routing policy; other flows are routed one by one.

A path inside a machine is found once for all; from switch to switch flows that are at one switch and bound for one
switch are handled together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from simcluster.base.arrays import Floats, Ints, Numbers, compact, concat_ranges, renumber, sort_order
from simcluster.base.link_columns import PerLink, TreeFlows
from simcluster.topology.access_paths import WHOLE, split_evenly
from simcluster.topology.hops import LeafLinks, Machines
from simcluster.topology.link_ends import LinkEnds
from simcluster.topology.policies import Flow
from simcluster.topology.wiring import Rows, Wiring


class Paths(LinkEnds):
    """Routes of many flows between equal machines, computed in arrays; ``one`` is machine 0, with links by column."""

    one: Wiring
    machines: Machines
    ends: LeafLinks

    @cached_property
    def _path_shares(self) -> list[float]:
        """Fraction of a flow on each of its paths; empty where every path has one flow."""
        paths = len(self.routing.picks(Flow(0, 0, 0, 0)))
        return [part / WHOLE for part in split_evenly(WHOLE, paths)] if paths else []

    def rows(self, src: Ints, dst: Ints, number: Ints) -> Rows:
        """Return the links that flows cross, as rows (flow, link, fraction of its bytes), sorted by flow."""
        size, left = self.machines.size, src != dst
        together = src // size == dst // size
        parts = [self._links_inside(np.flatnonzero(left & together), src, dst)]
        if not self.routing.pxn:
            parts.append(self._links_across(np.flatnonzero(left & ~together), src, dst, number))
        for flows, *_ in parts:
            left[flows] = False
        return _merge_rows([*parts, self.one_by_one(np.flatnonzero(left), src, dst, number)])

    def loads(self, flows: TreeFlows) -> PerLink | None:
        """Return the number of flows that cross every link; None if not all routes have a closed form.

        Paths inside machines and their ends are found once for all that send and receive equally often, so that only
        flows from leaf to leaf are handled link by link; those that switches split evenly are counted by leaf. None
        also where a flow has several connections.
        """
        size, table = self.machines.size, flows.table
        own, places = table[:, 0] // size, table[0] % size
        several = len(self._path_shares) > 1 or self.routing.pxn or np.bincount(own).max() > 1
        if several or (table != (own * size)[:, None] + places).any():
            return None
        sent, received = (np.bincount(each, minlength=len(own)) for each in (flows.source, flows.target))
        most = int(received.max(initial=0)) + 1
        pairs, which = compact(sent * most + received)
        inside = np.zeros((len(pairs) + 1, self.machines.owned.shape[1]))  # the last: of machines that are not used
        keys = places[np.array(list(flows.pairs), dtype=np.int64).reshape(-1, 2)] @ [size, 1]
        ways = self.machines.ways_inside(keys, self._columns_of_path)[keys]
        for way, times in zip(ways, flows.pairs.values(), strict=True):
            inside[:-1, way[way >= 0]] += times
        at = places[[column for column, _ in flows.rails]]
        for count, links in zip(np.divmod(pairs, most), (self.ends.out, self.ends.back), strict=True):
            for way in links[at]:
                inside[:-1, way[way >= 0]] += count[:, None]
        crossed = self._from_leaf_to_leaf(flows, own, at)
        if (ways[:, 0] < 0).any() or crossed is None:
            return None
        kind = np.full(self.machines.count, len(pairs), dtype=np.int64)
        kind[own] = which
        kinds_of_leaves, of_leaves, rest = crossed
        return PerLink(self.ground.rows, (kind, *kinds_of_leaves), (inside, *of_leaves), rest)

    def _from_leaf_to_leaf(
        self, flows: TreeFlows, own: Ints, at: Ints
    ) -> tuple[list[Ints], list[Floats], Floats] | None:
        """Return the flows on links between leaf switches, as parts of a ``PerLink``; GPUs are in the places ``at``."""
        machines, ends, rows = self.machines, self.ends, self.ground.rows
        kind, table = ends.leaves
        number = np.array([number for _, number in flows.rails])
        some = np.flatnonzero(kind[own[flows.source]] != kind[own[flows.target]])  # others stay below their leaves
        near, far = own[flows.source[some]], own[flows.target[some]]
        leave, enter = table[kind[near]][:, at], table[kind[far]][:, at]
        if (ends.part[leave] != ends.part[enter]).any():
            return None
        going = leave != enter
        leave, enter = leave[going], enter[going]
        if not self._path_shares:
            return self._even_leaf_flows(leave, enter)
        src, dst = (machines.gpus[each][:, at][going] for each in (near, far))
        columns: list[Numbers] = [src, dst, ends.order[dst], (flows.number[some][:, None] + number)[going]]
        first, *last = rows.ends
        between = np.zeros(len(rows.place) - first)
        for *_, links in self._over_fabric(columns, leave, enter):
            between += np.bincount(rows.place[links] - first, minlength=len(between))
        *counts, rest = np.split(between, [end - first for end in last])
        values = [part.reshape(each.shape) for part, each in zip(counts, rows.tables[1:], strict=True)]
        return [np.arange(len(each)) for each in values], values, rest

    def _even_leaf_flows(self, leave: Ints, enter: Ints) -> tuple[list[Ints], list[Floats], Floats] | None:
        """Return the flows on links between leaf switches if each leaf splits its flows evenly over its uplinks.

        None unless both leaves of every flow are linked to the same switches, and not to leaves, and sums are exact.
        """
        hops, rows = self.ground.hops, self.ground.rows
        sent, received = (np.bincount(each, minlength=hops.size) for each in (leave, enter))
        most = max(int(sent.max()), int(received.max()))
        below = (self.ground.table[leave] > 0).all() and (hops.onto[leave] == hops.onto[enter]).all()
        if not below or most * WHOLE >= 1 << 53:
            return None
        kinds, values = [], []
        for number, table in enumerate(rows.tables[1:], start=1):
            own = self.ground.table == number
            pairs, which = compact(sent[own] * (most + 1) + received[own])
            parts = np.array(split_evenly(WHOLE, table.shape[1] // 2)) / WHOLE
            kinds.append(which)
            values.append(np.concatenate([each[:, None] * parts for each in np.divmod(pairs, most + 1)], axis=1))
        return kinds, values, np.zeros(len(rows.rest))

    # --- in a machine ------------------------------------------------------------------------------------------------

    def _links_inside(self, flows: Ints, src: Ints, dst: Ints) -> Rows:
        machines = self.machines
        machine, place = np.divmod(src[flows], machines.size)
        key = place * machines.size + dst[flows] % machines.size
        way = machines.ways_inside(np.flatnonzero(np.bincount(key)), self._columns_of_path)[key]
        known = way[:, 0] >= 0
        if not known.all():
            flows, machine, way = flows[known], machine[known], way[known]
        links = machines.owned[machine[:, None], way].astype(np.int64)
        return _flatten_rows(flows, np.where(way < 0, -1, links), np.ones(way.shape[1]))

    # --- over the fabric ---------------------------------------------------------------------------------------------

    def _links_across(self, flows: Ints, src: Ints, dst: Ints, number: Ints) -> Rows:
        ends = self.ends
        leave, enter = (ends.leaf[gpus[flows]].astype(np.int64) for gpus in (src, dst))
        plain = ends.part[leave] == ends.part[enter]
        flows, leave, enter = flows[plain], leave[plain], enter[plain]
        src, dst, number = src[flows], dst[flows], number[flows]
        columns = [*self.machines.links(src, ends.out).T, *self.machines.links(dst, ends.back).T]
        fractions = [1.0] * len(columns)
        for share, rest, crossed in self._over_fabric((src, dst, ends.order[dst], number), leave, enter):
            columns.append(np.full(len(flows), -1, dtype=np.int64))
            columns[-1][rest] = crossed
            fractions.append(share)
        found = _flatten_rows(flows, np.stack(columns, axis=1), np.array(fractions))
        return found if self._path_shares else _merge_rows([found, self._sprayed_links(flows, src, dst, leave, enter)])

    def _sprayed_links(self, flows: Ints, src: Ints, dst: Ints, leave: Ints, enter: Ints) -> Rows:
        """Return the links between leaf switches of flows that are split evenly at each switch.

        They are found once for each pair of leaves, and without a graph where both are below the same switches.
        """
        hops = self.ground.hops
        which, some = renumber(leave * hops.size + enter)
        near, far = leave[some], enter[some]
        over, done = hops.onto[near], near == far
        meets = ~done & (over == hops.onto[far]) & (hops.between(near, far) < 0)
        others = np.flatnonzero(~done & ~meets)
        pair, link, fraction = self.one_by_one(others, src[some], dst[some], np.zeros_like(some))
        inner = self.ground.rows.place[link] >= self.ground.rows.ends[0]
        parts = [(pair[inner], link[inner], fraction[inner])]
        for kind in np.flatnonzero(np.bincount(over[meets])).tolist():
            those, table = np.flatnonzero(meets & (over == kind)), hops.neighbours[kind]
            up = hops.nth(near[those][:, None], np.arange(len(table)))
            way = np.concatenate([up, hops.between(table, far[those][:, None])], axis=1)
            shares = np.tile(np.array(split_evenly(WHOLE, len(table))) / WHOLE, 2 * len(those))
            parts.append((np.repeat(those, way.shape[1]), way.ravel(), shares))
        pair, link, fraction = _merge_rows(parts)
        counts = np.bincount(pair, minlength=len(some))
        row = np.repeat((np.cumsum(counts) - counts)[which], counts[which]) + concat_ranges(counts[which])
        return np.repeat(flows, counts[which]), link[row], fraction[row]

    def _over_fabric(self, columns: Sequence[Numbers], leave: Ints, enter: Ints) -> Iterator[tuple[float, Ints, Ints]]:
        """Yield per hop between switches the fraction of bytes, the flows that continue, and the links that they cross.

        ``columns`` are the flows' fields (sender, receiver, order, number). Which of several paths a flow takes is the
        policy's arithmetic, on arrays.
        """
        hops = self.ground.hops
        if self.routing.by_flow:  # they are hashed
            columns = [each.astype(np.uint64) for each in columns]
        for path, share in enumerate(self._path_shares):
            rest, here = np.arange(len(leave)), leave
            while True:
                going = here != enter[rest]
                if not going.all():
                    rest, here = rest[going], here[going]
                if not len(rest):
                    break
                goal = enter[rest]
                links, onward = hops.between(here, goal), goal.copy()
                far = np.flatnonzero(links < 0)
                kinds, which = compact(hops.onto[here[far]] * len(hops.neighbours) + hops.onto[goal[far]])
                order = far[sort_order(which)]
                for kind, some in zip(
                    kinds.tolist(), np.split(order, np.cumsum(np.bincount(which))[:-1]), strict=False
                ):
                    table = hops.onward(*divmod(kind, len(hops.neighbours)))
                    of_flow: Sequence[Any] = [column[rest[some]] for column in columns]
                    position: Any = self.ends.position[here[some]].astype(np.uint64)
                    turn: Any = self.routing.picks(Flow(*of_flow))[path](position, len(table))
                    onward[some] = table[np.broadcast_to(turn, len(some)).astype(np.int64)]
                    links[some] = hops.between(here[some], onward[some])
                yield share, rest, links
                here = onward

    def _columns_of_path(self, src: int, dst: int) -> list[int] | None:
        """Return the link columns of the path between two GPUs of machine 0 if it is unique and stays inside.

        It is as short as any over one leaf, or up from one and down to another.
        """
        ways, start, end = self.one.router.ways, self.one.gpus[src], self.one.gpus[dst]
        inside = ways.hops_inside(end).get(start)
        leave, enter = ways.near.exits[src][0], ways.near.entries[dst][0]
        outside = leave.hops + 1 + enter.hops + 1 + (0 if leave.switch == enter.switch else 2)
        walk = ways.only_walk_inside(start, end) if inside is not None and inside <= outside else None
        return None if walk is None else [self.one.link_index[hop] for hop in pairwise(walk)]


def _flatten_rows(flows: Ints, links: Ints, fractions: Floats) -> Rows:
    """Return rows (flow, link, fraction) from a table of links with one line per flow, -1 for no link."""
    there = links >= 0
    if there.all():
        return np.repeat(flows, links.shape[1]), links.ravel(), np.tile(fractions, len(flows))
    return np.repeat(flows, there.sum(axis=1)), links[there], np.broadcast_to(fractions, there.shape)[there]


def _merge_rows(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all parts sorted by flow; rows of a flow keep their order."""
    parts = [part for part in parts if len(part[0])] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    flow, link, fraction = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(flow, kind="stable")
    return flow[order], link[order], fraction[order]
