"""What links join, by their numbers: of a regular cluster in arrays, without a graph or the name of any other link."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcluster.base.arrays import Ints, compact
from simcluster.base.link_columns import LinkRows
from simcluster.topology.draft import Draft
from simcluster.topology.links import Graph, called
from simcluster.topology.numbering import LinkNumbers

_AT_ONCE = 1 << 20  # links, which bounds what is kept beside their kinds


class LinkKind(NamedTuple):
    """What reports call the nodes where links begin and end, and their medium."""

    begin: str
    end: str
    medium: str


class LinkEnds:
    """The nodes that the links of a draft join."""

    def __init__(self, draft: Draft, numbers: LinkNumbers, rows: LinkRows) -> None:
        self._draft, self._numbers, self._rows = draft, numbers, rows

    def named(self, links: Ints) -> list[tuple[str, str]]:
        """Names of the nodes where links begin and end."""
        begin, end = (self._names(nodes) for nodes in self.nodes(links))
        return list(zip(begin, end, strict=True))

    def kinds(self, links: Ints) -> tuple[Ints, list[LinkKind]]:
        """The kind of each link, by number, and the kinds."""
        by_node, labels = self._labels
        media = list(dict.fromkeys(str(data["medium"]) for data in self._draft.sorts))
        of_sort = np.array([media.index(str(data["medium"])) for data in self._draft.sorts])
        codes = np.empty(len(links), dtype=np.int64)
        for first in range(0, len(links), _AT_ONCE):
            some = links[first : first + _AT_ONCE]
            begin, end = (by_node[nodes].astype(np.int64) for nodes in self.nodes(some))
            medium = of_sort[self._numbers.sorts[some]]
            codes[first : first + _AT_ONCE] = (begin * len(labels) + end) * len(media) + medium
        different, number = compact(codes)
        kinds = []
        for code in different.tolist():
            ends, number_of_medium = divmod(code, len(media))
            begin_label, end_label = divmod(ends, len(labels))
            kinds.append(LinkKind(labels[begin_label], labels[end_label], media[number_of_medium]))
        return number, kinds

    def nodes(self, links: Ints) -> tuple[Ints, Ints]:
        """The nodes where links begin and end."""
        numbers = self._numbers
        begin, end = np.empty((2, len(links)), dtype=np.int64)
        place = self._rows.place[links]
        inside, others = np.flatnonzero(place < numbers.owned.size), links[place >= numbers.owned.size]
        machine, column = np.divmod(place[inside], numbers.owned.shape[1])
        came = np.array(numbers.came, dtype=np.int64).reshape(-1, 2)[column]
        for which, block in enumerate(self._draft.blocks):
            own = np.flatnonzero(came[:, 0] == which)
            for found, side in ((begin, 0), (end, 1)):
                found[inside[own]] = block.at(side, machine[own], came[own, 1])
        for found, those in ((begin, others), (end, numbers.turned[others - numbers.first])):
            switch = np.searchsorted(numbers.starts, those, side="right") - 1
            found[place >= numbers.owned.size] = self._draft.nodes.size + switch
        return begin, end

    @cached_property
    def _labels(self) -> tuple[NDArray[np.int16], list[str]]:
        """For every node the number of what it is called in reports, and these."""
        draft = self._draft
        known: dict[str, int] = {}
        found = np.empty(draft.size, dtype=np.int16)
        inside = [called(data) for _, data in draft.pattern.nodes(data=True)]
        found[draft.nodes] = np.array([known.setdefault(name, len(known)) for name in inside], dtype=np.int16)
        for node, (_, data) in draft.switches.items():
            found[node] = known.setdefault(called(data), len(known))
        return found, list(known)

    def _names(self, nodes: Ints) -> list[str]:
        draft = self._draft
        cut = len(draft.domain) + 1
        inside = np.flatnonzero(nodes < draft.nodes.size)
        machine = np.empty(draft.nodes.size, dtype=np.int32)
        place = np.empty_like(machine)
        machine[draft.nodes] = np.arange(draft.stamped, dtype=np.int32)[:, None]
        place[draft.nodes] = np.arange(draft.nodes.shape[1], dtype=np.int32)
        suffixes = [name[cut:] for name in draft.pattern]
        found = [""] * len(nodes)
        own = nodes[inside]
        for at, one, suffix in zip(inside.tolist(), machine[own].tolist(), place[own].tolist(), strict=True):
            found[at] = f"{draft.domain}{one}{suffixes[suffix]}"
        for at in np.flatnonzero(nodes >= draft.nodes.size).tolist():
            found[at] = draft.switches[int(nodes[at])][0]
        return found


def kinds_in(graph: Graph, links: Sequence[tuple[str, str]]) -> tuple[Ints, list[LinkKind]]:
    """``LinkEnds.kinds`` of links that are given by their nodes in a graph."""
    labels = {node: called(data) for node, data in graph.nodes(data=True)}
    known: dict[LinkKind, int] = {}
    kinds = [LinkKind(labels[a], labels[b], str(graph[a][b]["medium"])) for a, b in links]
    return np.array([known.setdefault(kind, len(known)) for kind in kinds], dtype=np.int64), list(known)
