"""Links that transfers of a step in arrays share with others: which transfers are held back there, and for how long.

Known once the step has been swept and it is known when they begin.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from functools import cached_property

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.link_values import LinkValues
from simcluster.engine.links_alone import LinksAlone
from simcluster.engine.longest_path import NeedsEventsError
from simcluster.engine.meet_on_links import Flights, MeetOnLinks
from simcluster.engine.moved import Moved, MovedBySort, Sort
from simcluster.engine.overlaps import ROOM, first_held_back
from simcluster.engine.stage_sweep import StageSweep, Times
from simcluster.planning.ops import StageProgram
from simcluster.symmetry.communicators import Communicators

_LOOKED_AT_FIRST = 300_000
"""Uses of links, the earliest, that are looked at before all: where transfers meet they do so from the begin."""

Rows = tuple[Ints, Ints, Floats, Floats, Floats]
"""What transfers do on links: the place in the stage that tells when, the link, begin and end from there on, and the
part of the link."""


class RankLinks:
    """The transfers of a sweep on the cluster's links: ``moved`` says by sort what ops do with others, ``alone`` what
    that takes on links of its own, ``capacity`` is B/s per link."""

    def __init__(
        self,
        sweep: StageSweep,
        programs: Sequence[StageProgram],
        moved: MovedBySort,
        alone: LinksAlone,
        communicators: Communicators,
        capacity: Floats,
    ) -> None:
        self.sweep, self._programs, self._by_sort = sweep, programs, moved
        self._alone, self._communicators, self._capacity = alone, communicators, capacity
        self._again = {nodes[0]: nodes[1:] for nodes, groups in sweep.met() if groups}

    def lasting(self, times: Sequence[Times]) -> dict[tuple[int, int], Floats]:
        """By stage and op, the seconds [place] of transfers that do not take what they take alone."""
        found = {}
        for node, seconds in self._meeting(lambda node: times[node][1][0]).items():
            for each in (node, *self._again.get(node, ())):  # a group may have ranks of several stages
                name = self.sweep.name_of(each)
                found[name] = seconds[self._moved(each).of]
        return found

    @cached_property
    def _meeting(self) -> MeetOnLinks:
        again = {node for nodes in self._again.values() for node in nodes}
        flights = {}
        for node in range(self.sweep.count):
            rows = self._tables.get(self.sweep.name_of(node))
            if rows is not None and node not in again:
                moved = self._moved(node)
                first = np.unique(moved.of, return_index=True)[1]
                traffics = [meeting.traffics for meeting in moved.meetings]
                flights[node] = Flights(first, moved.seconds, traffics, moved.of[rows[0]], rows[1])
        return MeetOnLinks(flights, self._capacity, self._alone.rate, self._count(again))

    def _count(self, again: Container[int]) -> int:
        """How many transfers there are, those of nodes ``again`` with the nodes that they meet."""
        nodes = (node for node in range(self.sweep.count) if node not in again)
        return sum(len(self._moved(node).numbers) for node in nodes if self._moves(node))

    def _moves(self, node: int) -> bool:
        work = self.sweep.op_of(node).work
        return not work.joins and work.group(self.sweep.name_of(node)[0]) is not None

    def _moved(self, node: int) -> Moved:
        return self._by_sort.of(*self.sweep.name_of(node))

    def require_free(self, times: Sequence[Times]) -> None:
        """NeedsEventsError if a transfer was held back by others on a link."""
        tables = self._tables
        if not tables:
            return
        nodes = [node for node in range(len(times)) if self.sweep.name_of(node) in tables]
        nodes.sort(key=lambda node: float(times[node][1][0].min()))
        rows = np.cumsum([len(tables[self.sweep.name_of(node)][0]) for node in nodes])
        soon = int(np.searchsorted(rows, _LOOKED_AT_FIRST)) + 1
        for some in (nodes[:soon], nodes) if soon < len(nodes) else (nodes,):
            first = self._first_held_back(some, tables, times)
            if first < math.inf:
                raise NeedsEventsError(f"transfers hold each other back on a link, the first at {first:.6g} s")

    def _first_held_back(
        self, nodes: Sequence[int], tables: dict[tuple[int, int], Rows], times: Sequence[Times]
    ) -> float:  # fmt: skip
        """Seconds at which one of the transfers of these nodes is first held back by others of them."""
        links, begins, ends, parts = [], [], [], []
        for node in nodes:
            place, link, begin, end, part = tables[self.sweep.name_of(node)]
            start = times[node][1][0, place]
            links.append(link)
            begins.append(start + begin)
            ends.append(start + end)
            parts.append(part)
        return first_held_back(*map(np.concatenate, (links, begins, ends, parts)))

    @cached_property
    def _tables(self) -> dict[tuple[int, int], Rows]:
        """By stage and op, what its transfers do on links that more than they may load beyond what they carry."""
        communicators = self._communicators
        heeded = communicators.heeded(self._programs, LinkValues(self._capacity), ())
        tight = np.zeros(len(self._capacity), dtype=bool)
        tight[communicators.bindings.link[heeded]] = True
        of_sort: dict[Sort, tuple[Floats, Ints]] = {}
        for sort, moved in self._by_sort.known.items():
            first = np.unique(moved.of, return_index=True)[1]
            rows = [np.zeros((0, 5))]
            for own, (number, meeting) in enumerate(zip(moved.numbers.tolist(), moved.meetings, strict=True)):
                if number not in communicators.lone:
                    uses = self._alone.uses(meeting.traffics, tight)
                    rows.append(np.column_stack([np.full(len(uses), float(first[own])), uses]))
            of_sort[sort] = np.concatenate(rows), moved.numbers[moved.of]
        crowded = self._crowded(of_sort)
        found = {}
        for stage, ops in enumerate(self.sweep.ops):
            for number, (_, op) in enumerate(ops):
                rows_of = of_sort.get(self._by_sort.sort(stage, number))
                if rows_of is None or op.work.joins:
                    continue
                kept = rows_of[0][crowded[rows_of[0][:, 1].astype(np.int64)]]
                if len(kept):
                    place, link = kept[:, :2].astype(np.int64).T
                    found[stage, number] = place, link, kept[:, 2], kept[:, 3], kept[:, 4]
        return found

    def _crowded(self, of_sort: dict[Sort, tuple[Floats, Ints]]) -> Ints:
        """Which links the users of different lanes may load beyond what they carry, if all are there at once."""
        most: dict[tuple[int, int, int, str], float] = {}
        for (stage, _, lane, _), (rows, numbers) in of_sort.items():
            for place, link, begin, end, part in rows.tolist():
                name = int(link), int(numbers[int(place)]), stage, lane
                most[name] = max(most.get(name, 0.0), part if end > begin else 2.0)
        load = np.zeros(len(self._capacity))
        for (link, *_), part in most.items():
            load[link] += part
        return np.asarray(load > 1.0 - ROOM)
