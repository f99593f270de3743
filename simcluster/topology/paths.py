"""The links of very many flows, flow by flow: the routes of ``routing`` in arrays.

Where all machines are alike, a way inside one is found once for all; from switch to switch flows that are at one switch
and bound for one switch are looked at together, as in ``crowd``.  What is not so regular is routed one by one.
Imports ``alike``, ``hops``, ``many``, ``policies`` and ``ways``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from simcluster.topology.alike import Ends, Floats, Ints, Machines
from simcluster.topology.hops import Hops
from simcluster.topology.many import of_equal_keys, shares_of, turns
from simcluster.topology.policies import RoutingSpec
from simcluster.topology.ways import Ways

Spread: TypeAlias = tuple[tuple[int, float], ...]
Pairs: TypeAlias = Mapping[tuple[int, int], int]
"""How many flows go from column to column."""
Rows: TypeAlias = tuple[Ints, Ints, Floats]
"""(flow, link, fraction) of every link that a flow crosses, in columns."""
Few: TypeAlias = NDArray[np.int32]


class Paths:
    """Routes many flows on one cluster; ``spread(src, dst, number)`` routes a single one.

    ``walk`` gives the links from GPU to GPU of machine 0, if there is one way, which does not leave it.
    """

    def __init__(
        self,
        machines: Machines | None,
        ends: Callable[[], Ends],
        hops: Callable[[], Hops],
        policy: RoutingSpec,
        spread: Callable[[int, int, int], Spread],
        walk: Callable[[int, int], list[int] | None],
    ) -> None:
        self._machines = machines
        self._make_ends, self._make_hops = ends, hops
        self._policy, self._spread, self._walk = policy, spread, walk
        self._shares = shares_of(policy)

    @classmethod
    def of(
        cls,
        ways: Ways,
        gpus: Sequence[str],
        link_index: Mapping[tuple[str, str], int],
        policy: RoutingSpec,
        spread: Callable[[int, int, int], Spread],
    ) -> Paths:
        """Those of a graph."""
        machines = Machines.of(ways, gpus, link_index)

        def walk(src: int, dst: int) -> list[int] | None:
            if ways.only_walk_inside(gpus[src], gpus[dst]) is None:
                return None
            return [link for link, _ in spread(src, dst, 0)]

        def ends() -> Ends:
            assert machines is not None
            return Ends.of(machines, ways, gpus, link_index)

        found = cls(machines, ends, lambda: Hops.of(found._ends, link_index), policy, spread, walk)
        return found

    def rows(self, src: Ints, dst: Ints, number: Ints) -> Rows:
        """The links of all flows, by flow."""
        parts: list[Rows] = []
        left = src != dst
        if self._machines is not None:
            together = self._machines.machine[src] == self._machines.machine[dst]
            parts.append(self._inside(np.flatnonzero(left & together), src, dst, left))
            if self._shares and not self._policy.pxn:
                parts.append(self._across(np.flatnonzero(left & ~together), src, dst, number, left))
        parts.append(self._one_by_one(np.flatnonzero(left), src, dst, number))
        return _merged([part for part in parts if len(part[0])], len(src))

    def loads(self, table: Ints, pairs: Pairs, src: Ints, dst: Ints, rails: Sequence[tuple[int, Ints]]) -> Few | None:
        """How many flows cross every link.

        A row of ``table`` are GPUs of one machine: ``pairs`` of columns exchange flows in all of them, and on each of
        the ``rails``, (column, numbers of flows), one flow goes from row ``src[i]`` to row ``dst[i]``, on another
        machine.  Ways inside machines are found once for all, their ends counted by GPU, so that only flows from leaf
        to leaf are gone through link by link.  None where flows are split, or not all in closed form.
        """
        machines = self._machines
        if machines is None or self._shares != [1.0] or self._policy.pxn:
            return None
        ends, rows, places = self._ends, machines.machine[table[:, 0]], machines.place[table[0]]
        alike = (table == machines.gpus[rows[:, None], places]).all() and np.bincount(rows).max() == 1
        if not alike or (rows[src] == rows[dst]).any():
            return None
        inside = np.zeros((machines.links.shape[1], len(rows)), dtype=np.int32)  # on links that begin in machines
        keys = {(a, b): int(places[a]) * machines.size + int(places[b]) for a, b in pairs}
        ways = machines.ways_inside(np.array(list(keys.values()), dtype=np.int64), self._walk)
        for pair, times in pairs.items():
            way = ways[keys[pair]]
            if way[0] < 0:
                return None
            inside[way[way >= 0]] += times
        found = np.zeros(len(machines.back), dtype=np.int32)
        sent, received = (np.bincount(each, minlength=len(table)) for each in (src, dst))
        crossed = []
        for column, numbers in rails:
            gpus = table[:, column]
            leave, enter = ends.out_leaf[gpus], ends.in_leaf[gpus]
            if min(leave.min(), enter.min()) < 0 or (ends.part[[leave, enter]] != ends.part[leave[0]]).any():
                return None
            for count, links in ((sent, ends.out_links), (received, ends.in_links)):
                own = links[gpus[0]]
                for place, link in enumerate(own[own >= 0].tolist()):
                    if machines.link_place[link] >= 0:
                        inside[machines.link_place[link]] += count
                    else:  # each machine has its own
                        found[links[gpus, place]] += count
            far = np.flatnonzero(leave[src] != enter[dst])
            flows = np.arange(len(far)), gpus[src[far]], gpus[dst[far]], numbers[far]
            crossed.append(self._across(*flows, np.ones(len(far), dtype=bool), fabric_alone=True)[1])
        link = np.concatenate([*crossed, rows[:0]])
        low = int(link.min(initial=len(found)))
        between = np.bincount(link - low)
        found[low : low + len(between)] += between
        if np.array_equal(rows, np.arange(len(machines.links))):
            machines.put(inside.T, found)
        else:
            found[machines.links[rows]] = inside.T
        return found

    def _one_by_one(self, flows: Ints, src: Ints, dst: Ints, number: Ints) -> Rows:
        rows = [
            (place, link, fraction)
            for place in flows.tolist()
            for link, fraction in self._spread(int(src[place]), int(dst[place]), int(number[place]))
        ]
        columns = list(zip(*rows, strict=True)) or [(), (), ()]
        flow, link = (np.array(column, dtype=np.int64) for column in columns[:2])
        return flow, link, np.array(columns[2], dtype=np.float64)

    # --- in a machine ------------------------------------------------------------------------------------------------

    def _inside(self, flows: Ints, src: Ints, dst: Ints, left: NDArray[np.bool_]) -> Rows:
        """Flows that stay in their machine; those done are taken from ``left``."""
        machines = self._machines
        assert machines is not None
        key = machines.place[src[flows]] * machines.size + machines.place[dst[flows]]
        ways = machines.ways_inside(np.flatnonzero(np.bincount(key)), self._walk)
        known = ways[key, 0] >= 0
        if not known.all():
            flows, key = flows[known], key[known]
        left[flows] = False
        way = ways[key]
        link = machines.links[machines.machine[src[flows]][:, None], way]
        return _flat(flows, link, way >= 0, np.ones(way.shape[1]))

    # --- over the fabric ---------------------------------------------------------------------------------------------

    def _across(
        self, flows: Ints, src: Ints, dst: Ints, number: Ints, left: NDArray[np.bool_], *, fabric_alone: bool = False
    ) -> Rows:
        """Flows between machines, of GPUs that leave and are entered in one way; those done are taken from ``left``.

        ``fabric_alone``: from leaf to leaf.
        """
        ends = self._ends
        leave, enter = ends.out_leaf[src[flows]], ends.in_leaf[dst[flows]]
        plain = (leave >= 0) & (enter >= 0)
        plain[plain] = ends.part[leave[plain]] == ends.part[enter[plain]]
        flows = flows[plain]
        left[flows] = False
        src, dst, number = src[flows], dst[flows], number[flows]
        columns = [] if fabric_alone else [*ends.out_links[src].T, *ends.in_links[dst].T]
        fractions = [1.0] * len(columns)
        order = ends.order[dst]
        goal = ends.in_leaf[dst]
        for path, share in enumerate(self._shares):
            rest, here = np.arange(len(flows)), ends.out_leaf[src]
            while True:
                going = here != goal[rest]
                if not going.all():
                    rest, here = rest[going], here[going]
                if not len(rest):
                    break
                links = np.full(len(flows), -1, dtype=np.int64)
                flow = (src[rest], dst[rest], order[rest], number[rest])
                links[rest], here = self._step(here, goal[rest], flow, path)
                columns.append(links)
                fractions.append(share)
        table = np.stack(columns, axis=1) if columns else np.zeros((len(flows), 0), dtype=np.int64)
        return _flat(flows, table, table >= 0, np.array(fractions))

    def _step(self, here: Ints, goal: Ints, columns: Sequence[Ints], path: int) -> tuple[Ints, Ints]:
        """From each flow's switch the next link and switch on the way to its goal."""
        hops = self._hops
        links, onward = hops.between(here, goal), goal.copy()
        far = np.flatnonzero(links < 0)
        over = hops.onto[here[far]]
        meets = over == hops.whence[goal[far]]  # all neighbours of one are neighbours of the other
        for kind in np.flatnonzero(np.bincount(over[meets])).tolist():
            rows = far[meets & (over == kind)]
            table = hops.neighbours[kind]
            turn = self._turns([column[rows] for column in columns], path, here[rows], len(table))
            onward[rows] = table[turn]
            links[rows] = hops.nth(here[rows], turn)
        far = far[~meets]
        for rows in of_equal_keys(here[far] * len(self._ends.switches) + goal[far]):
            some = far[rows]
            table = hops.onward(int(here[some[0]]), int(goal[some[0]]))
            turn = self._turns([column[some] for column in columns], path, here[some], len(table))
            onward[some] = table[turn]
            links[some] = hops.between(here[some], onward[some])
        return links, onward

    def _turns(self, columns: Sequence[Ints], path: int, here: Ints, ways: int) -> Ints:
        return turns(self._policy, columns, path, self._ends.position[here].astype(np.uint64), ways)

    @cached_property
    def _hops(self) -> Hops:
        return self._make_hops()

    @cached_property
    def _ends(self) -> Ends:
        return self._make_ends()


def _flat(flows: Ints, links: Ints, there: NDArray[np.bool_], fractions: Floats) -> Rows:
    """Rows of a table with one line per flow, ``links`` of which are ``there``; ``fractions`` of every column."""
    if there.all():
        return np.repeat(flows, links.shape[1]), links.ravel(), np.tile(fractions, len(flows))
    counts = there.sum(axis=1)
    return np.repeat(flows, counts), links[there], np.broadcast_to(fractions, there.shape)[there]


def _merged(parts: Sequence[Rows], flows: int) -> Rows:
    """Rows by flow, of parts that are so and have no flow in common."""
    if len(parts) == 1:
        return parts[0]
    counts = [np.bincount(part[0], minlength=flows) for part in parts]
    start = np.cumsum(sum(counts, np.zeros(flows, dtype=np.int64)))
    size = int(start[-1]) if flows else 0
    flow, link, fraction = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64), np.empty(size)
    for part, count in zip(parts, counts, strict=True):
        place = np.arange(len(part[0])) + np.repeat((start - count) - (np.cumsum(count) - count), count)
        flow[place], link[place], fraction[place] = part
    return flow, link, fraction
