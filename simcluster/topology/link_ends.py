"""Names of nodes and links of a regular cluster, computed from their numbers without a graph."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simcluster.base.arrays import Ints, unique_inverse
from simcluster.topology.draft import ClusterDraft, check_graph_size
from simcluster.topology.links import Graph, label_for_attributes
from simcluster.topology.numbering import LinkNumbers
from simcluster.topology.switch_links import ClusterColumns
from simcluster.topology.wiring import LinkKind, Wiring

_AT_ONCE = 1 << 20  # links, which bounds what is kept beside their kinds


class NumberedWiring(Wiring):
    """Wiring that computes node and link names from numbers, and builds its graph only on demand."""

    draft: ClusterDraft
    numbers: LinkNumbers
    ground: ClusterColumns

    @cached_property
    def graph(self) -> Graph:  # type: ignore[override]
        """Graph of all nodes and links; raises InputError if there are too many GPUs for a graph."""
        check_graph_size(self.draft.num_gpus)
        return self.draft.build_graph()

    @cached_property
    def gpus(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self.draft.gpu_names())

    @cached_property
    def switches(self) -> tuple[str, ...]:
        return tuple(name for name, data in self.draft.switches.values() if "network" not in data)

    @cached_property
    def links(self) -> tuple[tuple[str, str], ...]:  # type: ignore[override]
        names, (begin, end) = self.draft.node_names(), self.link_end_nodes(np.arange(len(self.link_capacity)))
        return tuple([(names[a], names[b]) for a, b in zip(begin.tolist(), end.tolist(), strict=True)])

    @cached_property
    def _all_names(self) -> frozenset[str]:
        return frozenset(self.draft.node_names())

    def has_node(self, node: str) -> bool:
        return node in self._all_names

    def link_names(self, links: Ints) -> list[tuple[str, str]]:
        begin, end = (self._node_names(nodes) for nodes in self.link_end_nodes(links))
        return list(zip(begin, end, strict=True))

    def link_kinds(self, links: Ints) -> tuple[Ints, list[LinkKind]]:
        by_node, labels = self._node_labels
        media = list(dict.fromkeys(str(data["medium"]) for data in self.draft.link_attributes))
        of_sort = np.array([media.index(str(data["medium"])) for data in self.draft.link_attributes])
        codes = np.empty(len(links), dtype=np.int64)
        for first in range(0, len(links), _AT_ONCE):
            some = links[first : first + _AT_ONCE]
            begin, end = (by_node[nodes].astype(np.int64) for nodes in self.link_end_nodes(some))
            medium = of_sort[self.numbers.sorts[some]]
            codes[first : first + _AT_ONCE] = (begin * len(labels) + end) * len(media) + medium
        different, number = unique_inverse(codes)
        kinds = []
        for code in different.tolist():
            ends, number_of_medium = divmod(code, len(media))
            begin_label, end_label = divmod(ends, len(labels))
            kinds.append(LinkKind(labels[begin_label], labels[end_label], media[number_of_medium]))
        return number, kinds

    def link_end_nodes(self, links: Ints) -> tuple[Ints, Ints]:
        """Return the numbers of the start nodes and of the end nodes of these links."""
        numbers = self.numbers
        begin, end = np.empty((2, len(links)), dtype=np.int64)
        place = self.ground.rows.position_of_link[links]
        inside, others = np.flatnonzero(place < numbers.owned.size), links[place >= numbers.owned.size]
        machine, column = np.divmod(place[inside], numbers.owned.shape[1])
        came = np.array(numbers.came, dtype=np.int64).reshape(-1, 2)[column]
        for which, block in enumerate(self.draft.blocks):
            own = np.flatnonzero(came[:, 0] == which)
            for found, side in ((begin, 0), (end, 1)):
                found[inside[own]] = block.nodes_at(side, machine[own], came[own, 1])
        for found, those in ((begin, others), (end, numbers.turned[others - numbers.first_switch_link])):
            switch = np.searchsorted(numbers.starts, those, side="right") - 1
            found[place >= numbers.owned.size] = self.draft.nodes.size + switch
        return begin, end

    @cached_property
    def _node_labels(self) -> tuple[NDArray[np.int16], list[str]]:
        """Label number of each node for reports, and the list of labels."""
        draft = self.draft
        known: dict[str, int] = {}
        found = np.empty(draft.size, dtype=np.int16)
        inside = [label_for_attributes(data) for _, data in draft.pattern.nodes(data=True)]
        found[draft.nodes] = np.array([known.setdefault(name, len(known)) for name in inside], dtype=np.int16)
        for node, (_, data) in draft.switches.items():
            found[node] = known.setdefault(label_for_attributes(data), len(known))
        return found, list(known)

    def _node_names(self, nodes: Ints) -> list[str]:
        draft = self.draft
        cut = len(draft.domain) + 1
        inside = np.flatnonzero(nodes < draft.nodes.size)
        machine = np.empty(draft.nodes.size, dtype=np.int32)
        place = np.empty_like(machine)
        machine[draft.nodes] = np.arange(draft.num_machines, dtype=np.int32)[:, None]
        place[draft.nodes] = np.arange(draft.nodes.shape[1], dtype=np.int32)
        suffixes = [name[cut:] for name in draft.pattern]
        found = [""] * len(nodes)
        own = nodes[inside]
        for at, one, suffix in zip(inside.tolist(), machine[own].tolist(), place[own].tolist(), strict=True):
            found[at] = f"{draft.domain}{one}{suffixes[suffix]}"
        for at in np.flatnonzero(nodes >= draft.nodes.size).tolist():
            found[at] = draft.switches[int(nodes[at])][0]
        return found
