"""The links of very many flows, flow by flow: the routes of ``routing`` in arrays.

Where all machines are alike, a way inside one is found once for all; from switch to switch flows that are at one switch
and bound for one switch are looked at together, as in ``crowd``.  What is not so regular is routed one by one.
Imports ``alike``, ``many``, ``policies`` and ``ways``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from simcluster.topology.alike import Ends, Floats, Hops, Ints, Machines
from simcluster.topology.many import of_equal_keys, shares_of, turns
from simcluster.topology.policies import RoutingSpec
from simcluster.topology.ways import Ways

Spread: TypeAlias = tuple[tuple[int, float], ...]
Rows: TypeAlias = tuple[Ints, Ints, Floats]
"""(flow, link, fraction) of every link that a flow crosses, in columns."""


class Paths:
    """Routes many flows on one graph; ``spread(src, dst, number)`` routes a single one."""

    def __init__(
        self,
        ways: Ways,
        gpus: Sequence[str],
        link_index: Mapping[tuple[str, str], int],
        policy: RoutingSpec,
        spread: Callable[[int, int, int], Spread],
    ) -> None:
        self._ways, self._gpus, self._link_index = ways, gpus, link_index
        self._policy, self._spread = policy, spread
        self._shares = shares_of(policy)
        self._machines = Machines.of(ways, gpus, link_index)

    def rows(self, src: Ints, dst: Ints, number: Ints) -> Rows:
        """The links of all flows, by flow."""
        found: list[Rows] = []
        left = src != dst
        if self._machines is not None:
            here = self._machines.machine[src], self._machines.machine[dst]
            found += self._inside(np.flatnonzero(left & (here[0] == here[1])), src, dst, left)
            if self._shares and not self._policy.pxn:
                found += self._across(np.flatnonzero(left & (here[0] != here[1])), src, dst, number, left)
        found.append(self._one_by_one(np.flatnonzero(left), src, dst, number))
        flow, link, fraction = (np.concatenate(column) for column in zip(*found, strict=True))
        order = np.argsort(flow, kind="stable")
        return flow[order], link[order], fraction[order]

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

    def _inside(self, flows: Ints, src: Ints, dst: Ints, left: NDArray[np.bool_]) -> list[Rows]:
        """Flows that stay in their machine; those done are taken from ``left``."""
        machines = self._machines
        assert machines is not None
        key = machines.place[src[flows]] * machines.size + machines.place[dst[flows]]
        found = []
        for rows in of_equal_keys(key):
            some = flows[rows]
            way = machines.way_inside(int(key[rows[0]]) // machines.size, int(key[rows[0]]) % machines.size, self._walk)
            if way is None:
                continue
            left[some] = False
            link = machines.links[machines.machine[src[some]][:, None], way]
            found.append((np.repeat(some, len(way)), link.ravel(), np.ones(link.size)))
        return found

    def _walk(self, src: int, dst: int) -> list[int] | None:
        """Links from GPU to GPU of one machine, if there is one way, which does not leave it."""
        if self._ways.only_walk_inside(self._gpus[src], self._gpus[dst]) is None:
            return None
        return [link for link, _ in self._spread(src, dst, 0)]

    # --- over the fabric ---------------------------------------------------------------------------------------------

    def _across(self, flows: Ints, src: Ints, dst: Ints, number: Ints, left: NDArray[np.bool_]) -> list[Rows]:
        """Flows between machines, of GPUs that leave and are entered in one way; those done are taken from ``left``."""
        ends = self._ends
        leave, enter = ends.out_leaf[src[flows]], ends.in_leaf[dst[flows]]
        plain = (leave >= 0) & (enter >= 0)
        plain[plain] = ends.part[leave[plain]] == ends.part[enter[plain]]
        flows = flows[plain]
        left[flows] = False
        src, dst, number = src[flows], dst[flows], number[flows]
        found: list[Rows] = []
        for links in (ends.out_links[src], ends.in_links[dst]):
            there = links >= 0
            found.append((np.repeat(flows, there.sum(axis=1)), links[there], np.ones(int(there.sum()))))
        order = ends.order[dst]
        goal = ends.in_leaf[dst]
        for path, share in enumerate(self._shares):
            rest, here = np.arange(len(flows)), ends.out_leaf[src]
            while len(rest):
                going = np.flatnonzero(here != goal[rest])
                rest, here = rest[going], here[going]
                columns = (src[rest], dst[rest], order[rest], number[rest])
                links, onward = self._step(here, goal[rest], columns, path)
                found.append((flows[rest], links, np.full(len(rest), share)))
                here = onward
        return found

    def _step(self, here: Ints, goal: Ints, columns: Sequence[Ints], path: int) -> tuple[Ints, Ints]:
        """From each flow's switch the next link and switch on the way to its goal."""
        hops = self._hops
        links, onward = hops.between(here, goal), goal.copy()
        far = np.flatnonzero(links < 0)
        over = hops.onto[here[far]]
        meets = over == hops.whence[goal[far]]  # all neighbours of one are neighbours of the other
        for kind in np.unique(over[meets]).tolist():
            rows = far[meets & (over == kind)]
            table = hops.neighbours[kind]
            turn = self._turns([column[rows] for column in columns], path, here[rows], len(table))
            onward[rows] = table[turn]
            links[rows] = hops.between(here[rows], onward[rows])
        far = far[~meets]
        for rows in of_equal_keys(here[far] * len(self._ends.switches) + goal[far]):
            some = far[rows]
            switch, dst = int(here[some[0]]), int(columns[1][some[0]])
            nodes = self._ways.onward(self._ways.near.signatures[dst], self._ends.switches[switch])
            table = np.array([self._ends.number[node] for node in nodes], dtype=np.int64)
            turn = self._turns([column[some] for column in columns], path, here[some], len(nodes))
            onward[some] = table[turn]
            links[some] = hops.between(here[some], onward[some])
        return links, onward

    def _turns(self, columns: Sequence[Ints], path: int, here: Ints, ways: int) -> Ints:
        return turns(self._policy, columns, path, self._ends.position[here].astype(np.uint64), ways)

    @cached_property
    def _hops(self) -> Hops:
        return Hops.of(self._ends, self._link_index)

    @cached_property
    def _ends(self) -> Ends:
        assert self._machines is not None
        return Ends.of(self._machines, self._ways, self._gpus, self._link_index)
