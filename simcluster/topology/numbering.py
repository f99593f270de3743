"""Numbers of a draft's links: in closed form those that begin in machines, in columns those that begin at switches.

Links are numbered by the node where they begin, then as they come, and machines come first.  All machines are alike, so
those of a machine are ``first + machine x step``, column by column: a cluster of a million GPUs has 6 million of them,
and none of what follows goes through them one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simcluster.base.arrays import Int32s, Ints, Numbers
from simcluster.base.in_turn import in_turn
from simcluster.topology.draft import Draft, LinkBlock


@dataclass(frozen=True, eq=False)
class MachineLinks:
    """The links of every machine, in a row: those that begin in it, ascending, then the ways back of those that end
    outside.

    The former are ``first`` in machine 0 and ``step`` higher in each other, the latter in ``back``.
    """

    first: Int32s
    step: Int32s
    back: Int32s

    @property
    def shape(self) -> tuple[int, int]:
        """Machines and links of each."""
        return len(self.back), len(self.first) + self.back.shape[1]

    def __len__(self) -> int:
        return len(self.back)

    def __getitem__(self, machines: Numbers) -> Int32s:
        begun = self.first + machines[:, None].astype(np.int32) * self.step
        return np.concatenate([begun, self.back[machines]], axis=1)

    def at(self, machines: Numbers, columns: Numbers) -> Int32s:
        """The links of some machines in some columns."""
        width = len(self.first)
        outside = columns >= width
        if outside.all():
            back: Int32s = self.back[machines, columns - width]
            return back
        own = np.minimum(columns, width - 1)
        found = self.first[own] + machines.astype(np.int32) * self.step[own]
        return np.where(outside, self.back[machines, np.maximum(columns - width, 0)], found) if outside.any() else found


@dataclass(frozen=True, eq=False)
class LinkNumbers:
    """The links of ``count`` machines and of the switches that they hang on.

    ``owned`` are those of every machine, of which ``width`` begin in it.  ``back`` is for every column the one of the
    way back, ``sort`` what the links of a column are like (by number in ``Draft.sorts``), ``came`` its block and column
    there.  ``start`` and ``columns`` cut the links of all machines into runs: where each begins, and how many of a
    machine are in it.  ``first`` is the first link of a switch; from there on ``begins``, ``ends`` (nodes), ``turned``
    (the other way) and ``sorts`` have one value a link.
    """

    count: int
    width: int
    owned: MachineLinks
    back: Ints
    sort: Ints
    came: Sequence[tuple[int, int]]
    start: Ints
    columns: Ints
    first: int
    begins: Int32s
    ends: Int32s
    turned: Int32s
    sorts: Numbers

    @property
    def total(self) -> int:
        """How many links there are."""
        return self.first + len(self.begins)

    @property
    def outside(self) -> Ints:
        """Columns of the links that leave a machine."""
        found: Ints = self.back[self.width :]
        return found

    def column(self, links: Ints) -> Ints:
        """Columns, in ``owned``, of links that begin or end in machines; -1 for the others."""
        found = self._column(links)
        some = np.flatnonzero(found < 0)
        near = self._column(self.turned[links[some] - self.first].astype(np.int64))
        found[some] = np.where(near < 0, -1, self.back[near])
        return found

    def _column(self, links: Ints) -> Ints:
        """Columns of links that begin in machines; -1 for the others."""
        return np.where(links < self.first, self.begun(links)[1], -1)

    def begun(self, links: Numbers) -> tuple[Ints, Ints]:
        """The machines that links begin in, and their columns."""
        run = np.searchsorted(self.start, links, side="right") - 1
        machine, place = np.divmod(links - self.start[run], self.columns[run])
        return machine, (np.cumsum(self.columns) - self.columns)[run] + place

    def sorts_of(self, links: Numbers) -> Numbers:
        """What some links are like, by number in ``Draft.sorts``."""
        found = np.empty(links.shape, dtype=self.sorts.dtype)
        inside = links < self.first
        found[inside] = self.sort[self.begun(links[inside])[1]]
        found[~inside] = self.sorts[links[~inside] - self.first]
        return found

    def by_link(self, of_sort: NDArray[Any]) -> NDArray[Any]:
        """For every link what links of its sort have."""
        found = np.empty(self.total, dtype=of_sort.dtype)
        column = 0
        for start, many in zip(self.start.tolist(), self.columns.tolist(), strict=True):
            run = found[start : start + self.count * many].reshape(self.count, many)
            run[:] = of_sort[self.sort[column : column + many]]
            column += many
        found[self.first :] = of_sort[self.sorts]
        return found

    @classmethod
    def of(cls, draft: Draft) -> LinkNumbers | None:
        """Those of a draft; None where a link leads from one machine to another without a switch between."""
        of_machine = [_places(draft, block) for block in draft.blocks]
        if any(places is not None and not places.told for places in of_machine):
            return None
        listed, columns = _leaving(draft, of_machine)
        start = np.cumsum(columns * draft.stamped) - columns * draft.stamped
        width, first = len(listed), int(columns.sum()) * draft.stamped
        tails = [
            [c for c in range(len(block.data)) if places is None or places.begin[c] < 0]
            for block, places in zip(draft.blocks, of_machine, strict=True)
        ]
        switches = np.int32(draft.nodes.size)
        at = [[block.column(0, c) - switches for c in cut] for block, cut in zip(draft.blocks, tails, strict=True)]
        number, counts = in_turn(at, draft.size - draft.nodes.size, first)
        place_of = {(block, column): place for place, (_, block, column) in enumerate(listed)}
        out = [place for place, (_, block, column) in enumerate(listed) if (block, column ^ 1) not in place_of]
        back = [place_of.get((block, column ^ 1), -1) for _, block, column in listed]
        for column, place in enumerate(out):
            back[place] = width + column
        came = [(block, column) for _, block, column in listed]
        came += [(block, column ^ 1) for block, column in map(came.__getitem__, out)]
        into = {each: width + column for column, each in enumerate(came[width:])}
        begins = np.repeat(np.arange(draft.nodes.size, draft.size, dtype=np.int32), counts)
        owned, ends, turned, sorts = _both_ways(draft, tails, number, (start, columns), (place_of, into))
        return cls(
            draft.stamped, width, owned, np.array(back + out, dtype=np.int64),
            np.array([sort for sort, *_ in listed], dtype=np.int64), came, start, columns, first, begins, ends, turned,
            sorts,
        )  # fmt: skip


def _leaving(draft: Draft, of_machine: Sequence[_Places | None]) -> tuple[list[tuple[int, int, int]], Ints]:
    """(sort, block, column) of the links that begin in a machine, ascending; how many of them are in every run."""
    first = np.cumsum([0, *(len(block.data) for block in draft.blocks)]).tolist()
    by_place: dict[int, list[tuple[int, int, int]]] = {}
    for block, places in enumerate(of_machine):
        for column, place in enumerate(places.begin if places else ()):
            by_place.setdefault(place, []).append((first[block] + column, block, column))
    runs = [[link for place in run for link in by_place.get(place, ())] for run in draft.runs]
    return [link for run in runs for link in run], np.array([len(run) for run in runs], dtype=np.int64)


def _both_ways(
    draft: Draft,
    tails: Sequence[Sequence[int]],
    number: Sequence[Sequence[Int32s]],
    runs: tuple[Ints, Ints],
    places: tuple[Mapping[tuple[int, int], int], Mapping[tuple[int, int], int]],
) -> tuple[MachineLinks, Int32s, Int32s, Numbers]:
    """``owned``, and of links that begin at switches ``ends``, ``turned`` and ``sorts``; ``number`` are these, block by
    block.

    ``places`` are the columns of links that begin in machines, and of those that only end there, by block and column.
    """
    (start, columns), (begun, ending) = runs, places
    lowest = np.repeat(start - (np.cumsum(columns) - columns), columns) + np.arange(len(begun))
    back = np.empty((draft.stamped, len(ending)), dtype=np.int32)
    owned = MachineLinks(lowest.astype(np.int32), np.repeat(columns, columns).astype(np.int32), back)
    machines = np.arange(draft.stamped, dtype=np.int32)
    first, switched = int((columns * draft.stamped).sum()), sum(len(each) for those in number for each in those)
    ends, turned = np.empty((2, switched), dtype=np.int32)
    sorts = np.empty(switched, dtype=np.min_scalar_type(len(draft.sorts)))
    sort = 0
    for which, (block, cut, those) in enumerate(zip(draft.blocks, tails, number, strict=True)):
        for column, own in zip(cut, those, strict=True):
            place = own - np.intp(first)
            there = begun.get((which, column ^ 1))
            turned[place] = those[cut.index(column ^ 1)] if there is None else owned.at(machines, np.array(there))
            ends[place] = block.column(1, column)
            sorts[place] = sort + column
            if there is not None:
                back[:, ending[which, column] - len(begun)] = own
        sort += len(block.data)
    return owned, ends, turned, sorts


class _Places:
    """A block with links of machines: by column the place in a machine where they begin, -1 for at a switch.

    ``told``: is each end that is not the row's own machine a switch?
    """

    def __init__(self, draft: Draft, block: LinkBlock) -> None:
        place = {node: number for number, node in enumerate(draft.nodes[0].tolist())}
        sides = [[place.get(node, -1) for node in block.first(which)] for which in (0, 1)]
        self.begin = sides[0]
        self.told = block.joined is not None or (
            block.rows == draft.stamped
            and all(
                bool((block.column(which, column) == draft.nodes[:, own]).all())
                if own >= 0
                else int(block.column(which, column).min()) >= draft.nodes.size
                for which, places in enumerate(sides)
                for column, own in enumerate(places)
            )
        )


def _places(draft: Draft, block: LinkBlock) -> _Places | None:
    """None for links between switches alone."""
    lowest = min(int(side.min(initial=draft.size)) for side in (block.lower, block.upper))
    return _Places(draft, block) if lowest < draft.nodes.size else None
