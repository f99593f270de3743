"""Link numbers of a draft: sorted by start node, machines first, then by order of insertion.

All machines are equal, so the links of a machine are ``first + machine x step``, column by column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from simcluster.base.arrays import Int32s, Ints, Numbers, number_entries_by_owner
from simcluster.topology.draft import ClusterDraft

_Column = tuple[int, int]
"""Number of a block of links, and a column of the block."""


@dataclass(frozen=True, eq=False)
class LinkNumbers:
    """Numbers of all links of a draft, per machine and per switch.

    A row of ``owned`` are those of a machine: the ``width`` that begin in it, ascending, then the reverses of those
    that end outside. ``back`` is for every column that of the reverse, ``came`` its block and column there. ``sorts``
    is every link's attributes, by number in ``ClusterDraft.link_attributes``. ``starts`` has the first link of every
    switch and, last, the number of links; ``turned`` is the reverse of every link that begins at a switch.
    """

    width: int
    owned: Int32s
    back: Ints
    came: Sequence[_Column]
    sorts: Numbers
    starts: Ints
    turned: Int32s

    @property
    def first_switch_link(self) -> int:
        """Number of the first link that begins at a switch."""
        return int(self.starts[0])

    @classmethod
    def from_draft(cls, draft: ClusterDraft) -> LinkNumbers | None:
        """Return the link numbers of a draft; None if a link joins two machines without a switch between."""
        outside = [table for block in draft.blocks for table in block.tables if table is not draft.nodes]
        if min([int(table.min(initial=draft.size)) for table in outside], default=draft.size) < draft.nodes.size:
            return None
        blocks = list(enumerate(draft.blocks))
        begins = {
            (i, own): block.machine_column_of(draft.nodes, own) for i, block in blocks for own in range(len(block.data))
        }
        runs = [[each for place in run for each, own in begins.items() if own == place] for run in draft.runs]
        came = [each for run in runs for each in run]
        width, first = len(came), len(came) * draft.num_machines
        came += [(block, column ^ 1) for block, column in came if begins[block, column ^ 1] < 0]
        owned = np.empty((draft.num_machines, len(came)), dtype=np.int32)
        place_of = {each: place for place, each in enumerate(came)}
        back = np.array([place_of[block, column ^ 1] for block, column in came], dtype=np.int64)
        links_of = {each: owned[:, place] for each, place in place_of.items()}
        tails = [each for each, own in begins.items() if own < 0]  # block by block
        tables = [[block.column_nodes(0, own) - np.int32(draft.nodes.size) for which, own in tails if which == number]
                  for number, block in blocks]  # fmt: skip
        numbers, counts = number_entries_by_owner(tables, draft.size - draft.nodes.size, first)
        for each, links in zip(tails, chain.from_iterable(numbers), strict=True):
            links_of.setdefault(each, links)[:] = links
        starts = np.cumsum([first, *counts])
        turned = np.empty(starts[-1] - first, dtype=np.int32)
        sorts = np.empty(starts[-1], dtype=np.min_scalar_type(len(draft.link_attributes)))
        sort_of = {each: sort for sort, each in enumerate(begins)}
        column = 0
        for run in runs:
            begin, end = column * draft.num_machines, (column + len(run)) * draft.num_machines
            machines = np.arange(begin, end, dtype=np.int32).reshape(draft.num_machines, len(run))
            owned[:, column : column + len(run)] = machines
            sorts[begin:end].reshape(machines.shape)[:] = [sort_of[each] for each in run]
            column += len(run)
        for block, column in tails:
            place = links_of[block, column] - np.intp(first)
            sorts[first:][place], turned[place] = sort_of[block, column], links_of[block, column ^ 1]
        return cls(width, owned, back, came, sorts, starts, turned)
