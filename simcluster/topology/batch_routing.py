"""Fast path: route many flows at once with arrays, for every routing policy; unusual flows are routed one by one.

A path inside a machine is found once for all; from switch to switch flows that are at one switch and bound for one
switch are handled together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from simcluster.base.arrays import Floats, Ints, Numbers, concat_ranges, number_by_first_use, sort_order, unique_inverse
from simcluster.base.link_columns import LinkColumn, TreeFlows
from simcluster.topology.access_paths import WHOLE, split_evenly
from simcluster.topology.link_ends import NumberedWiring
from simcluster.topology.policies import RoutingInputs
from simcluster.topology.switch_links import EqualMachines, LeafLinks
from simcluster.topology.wiring import Rows, Wiring


class BatchRouting(NumberedWiring):
    """Wiring of equal machines that routes many flows at once with arrays; ``one`` is the wiring of machine 0."""

    one: Wiring
    machines: EqualMachines
    ends: LeafLinks

    @cached_property
    def _path_shares(self) -> list[float]:
        """Fraction of a flow on each of its paths; empty if flows split evenly over all paths."""
        paths = len(self.routing.path_choices(RoutingInputs(0, 0, 0, 0)))
        return [part / WHOLE for part in split_evenly(WHOLE, paths)] if paths else []

    def route_rows(self, src: Ints, dst: Ints, number: Ints) -> Rows:
        size, left = self.machines.size, src != dst
        together = src // size == dst // size
        parts = [self._route_within_machines(np.flatnonzero(left & together), src, dst)]
        if not self.routing.pxn:
            parts.append(self._route_over_fabric(np.flatnonzero(left & ~together), src, dst, number))
        for flows, *_ in parts:
            left[flows] = False
        return _merge_rows([*parts, self.route_one_by_one(np.flatnonzero(left), src, dst, number)])

    def tree_link_loads(self, flows: TreeFlows) -> LinkColumn | None:
        """Return the number of flows that a double tree puts on every link; None if some route has no closed form.

        Paths inside machines and their ends are found once for all that send and receive equally often, so that only
        flows from leaf to leaf are handled link by link; those that switches split evenly are counted by leaf. None
        also where a flow has several connections.
        """
        size, table = self.machines.size, flows.gpus_by_node
        own, places = table[:, 0] // size, table[0] % size
        several = len(self._path_shares) > 1 or self.routing.pxn or np.bincount(own).max() > 1
        if several or (table != (own * size)[:, None] + places).any():
            return None
        sent, received = (np.bincount(each, minlength=len(own)) for each in (flows.source, flows.target))
        most = int(received.max(initial=0)) + 1
        pairs, which = unique_inverse(sent * most + received)
        inside = np.zeros((len(pairs) + 1, self.machines.machine_links.shape[1]))  # the last: of unused machines
        keys = places[np.array(list(flows.pairs), dtype=np.int64).reshape(-1, 2)] @ [size, 1]
        ways = self.machines.paths_within_machine(keys, self._link_columns_of_path)[keys]
        for way, times in zip(ways, flows.pairs.values(), strict=True):
            inside[:-1, way[way >= 0]] += times
        at = places[[column for column, _ in flows.rails]]
        for count, links in zip(np.divmod(pairs, most), (self.ends.out, self.ends.back), strict=True):
            for way in links[at]:
                inside[:-1, way[way >= 0]] += count[:, None]
        crossed = self._leaf_to_leaf_flows(flows, own, at)
        if (ways[:, 0] < 0).any() or crossed is None:
            return None
        kind = np.full(self.machines.count, len(pairs), dtype=np.int64)
        kind[own] = which
        kinds_of_leaves, of_leaves, rest = crossed
        return LinkColumn(self.ground.rows, (kind, *kinds_of_leaves), (inside, *of_leaves), rest)

    def _leaf_to_leaf_flows(
        self, flows: TreeFlows, own: Ints, at: Ints
    ) -> tuple[list[Ints], list[Floats], Floats] | None:
        """Return the number of a double tree's flows on every link between switches, as parts of a ``LinkColumn``."""
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
        src, dst = (machines.gpu_numbers[each][:, at][going] for each in (near, far))
        columns: list[Numbers] = [src, dst, ends.order[dst], (flows.number[some][:, None] + number)[going]]
        first, *last = rows.table_ends
        between = np.zeros(len(rows.position_of_link) - first)
        for *_, links in self._generate_fabric_hops(columns, leave, enter):
            between += np.bincount(rows.position_of_link[links] - first, minlength=len(between))
        *counts, rest = np.split(between, [end - first for end in last])
        values = [part.reshape(each.shape) for part, each in zip(counts, rows.tables[1:], strict=True)]
        return [np.arange(len(each)) for each in values], values, rest

    def _even_leaf_flows(self, leave: Ints, enter: Ints) -> tuple[list[Ints], list[Floats], Floats] | None:
        """Return the flows on links between switches if each leaf splits its flows evenly over its uplinks.

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
            pairs, which = unique_inverse(sent[own] * (most + 1) + received[own])
            parts = np.array(split_evenly(WHOLE, table.shape[1] // 2)) / WHOLE
            kinds.append(which)
            values.append(np.concatenate([each[:, None] * parts for each in np.divmod(pairs, most + 1)], axis=1))
        return kinds, values, np.zeros(len(rows.rest))

    # --- in a machine ------------------------------------------------------------------------------------------------

    def _route_within_machines(self, flows: Ints, src: Ints, dst: Ints) -> Rows:
        machines = self.machines
        machine, place = np.divmod(src[flows], machines.size)
        key = place * machines.size + dst[flows] % machines.size
        way = machines.paths_within_machine(np.flatnonzero(np.bincount(key)), self._link_columns_of_path)[key]
        known = way[:, 0] >= 0
        if not known.all():
            flows, machine, way = flows[known], machine[known], way[known]
        links = machines.machine_links[machine[:, None], way].astype(np.int64)
        return _flatten_rows(flows, np.where(way < 0, -1, links), np.ones(way.shape[1]))

    # --- over the fabric ---------------------------------------------------------------------------------------------

    def _route_over_fabric(self, flows: Ints, src: Ints, dst: Ints, number: Ints) -> Rows:
        ends = self.ends
        leave, enter = (ends.leaf[gpus[flows]].astype(np.int64) for gpus in (src, dst))
        plain = ends.part[leave] == ends.part[enter]
        flows, leave, enter = flows[plain], leave[plain], enter[plain]
        src, dst, number = src[flows], dst[flows], number[flows]
        columns = [*self.machines.links_of_gpus(src, ends.out).T, *self.machines.links_of_gpus(dst, ends.back).T]
        fractions = [1.0] * len(columns)
        for share, rest, crossed in self._generate_fabric_hops((src, dst, ends.order[dst], number), leave, enter):
            columns.append(np.full(len(flows), -1, dtype=np.int64))
            columns[-1][rest] = crossed
            fractions.append(share)
        found = _flatten_rows(flows, np.stack(columns, axis=1), np.array(fractions))
        return found if self._path_shares else _merge_rows([found, self._sprayed_links(flows, src, dst, leave, enter)])

    def _sprayed_links(self, flows: Ints, src: Ints, dst: Ints, leave: Ints, enter: Ints) -> Rows:
        """Route flows between leaf switches, split evenly over all next hops; return rows (flow, link, fraction).

        They are found once for each pair of leaves, and without a graph where both are below the same switches.
        """
        hops = self.ground.hops
        which, some = number_by_first_use(leave * hops.size + enter)
        near, far = leave[some], enter[some]
        over, done = hops.onto[near], near == far
        meets = ~done & (over == hops.onto[far]) & (hops.links_between(near, far) < 0)
        others = np.flatnonzero(~done & ~meets)
        pair, link, fraction = self.route_one_by_one(others, src[some], dst[some], np.zeros_like(some))
        inner = self.ground.rows.position_of_link[link] >= self.ground.rows.table_ends[0]
        parts = [(pair[inner], link[inner], fraction[inner])]
        for kind in np.flatnonzero(np.bincount(over[meets])).tolist():
            those, table = np.flatnonzero(meets & (over == kind)), hops.neighbours[kind]
            up = hops.nth_links(near[those][:, None], np.arange(len(table)))
            way = np.concatenate([up, hops.links_between(table, far[those][:, None])], axis=1)
            shares = np.tile(np.array(split_evenly(WHOLE, len(table))) / WHOLE, 2 * len(those))
            parts.append((np.repeat(those, way.shape[1]), way.ravel(), shares))
        pair, link, fraction = _merge_rows(parts)
        counts = np.bincount(pair, minlength=len(some))
        row = np.repeat((np.cumsum(counts) - counts)[which], counts[which]) + concat_ranges(counts[which])
        return np.repeat(flows, counts[which]), link[row], fraction[row]

    def _generate_fabric_hops(self, columns: Sequence[Numbers], a: Ints, b: Ints) -> Iterator[tuple[float, Ints, Ints]]:
        """Yield, for each hop between switches ``a`` and ``b``: fraction of bytes, indices of flows, and their links.

        ``columns`` are the flows' fields (sender, receiver, order, number). Which of several paths a flow takes is the
        policy's arithmetic, on arrays.
        """
        hops = self.ground.hops
        if self.routing.depends_on_flow:  # they are hashed
            columns = [each.astype(np.uint64) for each in columns]
        for path, share in enumerate(self._path_shares):
            rest, here = np.arange(len(a)), a
            while True:
                going = here != b[rest]
                if not going.all():
                    rest, here = rest[going], here[going]
                if not len(rest):
                    break
                goal = b[rest]
                links, onward = hops.links_between(here, goal), goal.copy()
                far = np.flatnonzero(links < 0)
                kinds, which = unique_inverse(hops.onto[here[far]] * len(hops.neighbours) + hops.onto[goal[far]])
                order = far[sort_order(which)]
                for kind, own in zip(kinds.tolist(), np.split(order, np.cumsum(np.bincount(which))[:-1]), strict=False):
                    table = hops.next_switches(*divmod(kind, len(hops.neighbours)))
                    of_flow: Sequence[Any] = [column[rest[own]] for column in columns]
                    position: Any = self.ends.position[here[own]].astype(np.uint64)
                    turn: Any = self.routing.path_choices(RoutingInputs(*of_flow))[path](position, len(table))
                    onward[own] = table[np.broadcast_to(turn, len(own)).astype(np.int64)]
                    links[own] = hops.links_between(here[own], onward[own])
                yield share, rest, links
                here = onward

    def _link_columns_of_path(self, src: int, dst: int) -> list[int] | None:
        """Return the link columns of the path between two GPUs inside machine 0; None if not unique or not shortest.

        It is as short as any over one leaf, or up from one and down to another.
        """
        ways, start, end = self.one.router.ways, self.one.gpus[src], self.one.gpus[dst]
        inside = ways.hops_within_machine(end).get(start)
        leave, enter = ways.near.exits[src][0], ways.near.entries[dst][0]
        outside = leave.hops + 1 + enter.hops + 1 + (0 if leave.switch == enter.switch else 2)
        walk = ways.unique_path_within_machine(start, end) if inside is not None and inside <= outside else None
        return None if walk is None else [self.one.link_index[hop] for hop in pairwise(walk)]


def _flatten_rows(flows: Ints, links: Ints, fractions: Floats) -> Rows:
    """Convert a table of links (one row per flow, padded with -1) to a list of rows (flow, link, fraction)."""
    there = links >= 0
    if there.all():
        return np.repeat(flows, links.shape[1]), links.ravel(), np.tile(fractions, len(flows))
    return np.repeat(flows, there.sum(axis=1)), links[there], np.broadcast_to(fractions, there.shape)[there]


def _merge_rows(parts: Sequence[Rows]) -> Rows:
    """Merge several lists of rows (flow, link, fraction) into one list, sorted by flow in stable order."""
    parts = [part for part in parts if len(part[0])] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    flow, link, fraction = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(flow, kind="stable")
    return flow[order], link[order], fraction[order]
