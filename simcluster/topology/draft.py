"""Draft of a cluster under construction: nodes and links as arrays, from which a graph can be built.

Builders add nodes and links block by block; a graph of 10^5 GPUs is an object only on demand. Nodes are numbered in the
order in which they are added. Links have the numbers that they have in the graph: by the node where they begin, then in
the order in which they are added.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import networkx as nx
import numpy as np

from simcluster.base.arrays import Int32s, Ints, Numbers
from simcluster.base.errors import InputError
from simcluster.base.progress import check_estimated_time, format_rough_duration
from simcluster.topology.links import EdgeData, Graph

MAX_GPUS = 2_000_000
"""Largest number of GPUs: the links of a regular cluster of a million GPUs take 0.5 GB and 2 s."""
MAX_DRAWN_GPUS = 200_000
"""Largest number of GPUs of a cluster whose graph has to be built."""
MAX_LINKS = 4_000_000
"""Largest number of full-duplex links per kind (GPU to NIC, leaf to spine, ...)."""
_DRAWN_BYTES, _DRAWN_SECONDS = 7e3, 90e-6  # for each GPU, with names of links and routes: DGX H100, 131,072 of them
_DRAWN_BESIDE = 2.5e-6
"""Seconds for each GPU and each in its machine, among whose nodes it looks for its NICs: 3,200 of them, 800 in each of
four machines, 3.3 s."""


def check_gpu_count(gpus: int) -> None:
    """Raise InputError if there are more GPUs than the simulator supports."""
    if gpus > MAX_GPUS:
        raise InputError(f"cluster has {gpus:,} GPUs; at most {MAX_GPUS:,} are supported: use fewer nodes")


def check_graph_size(gpus: int, per_machine: int = 1) -> None:
    """Raise InputError if a cluster has too many GPUs, in total or per machine, for a graph of all links."""
    if gpus > MAX_DRAWN_GPUS:
        raise InputError(
            f"cluster has {gpus:,} GPUs, and its graph must be built link by link ({gpus * _DRAWN_BYTES / 1e9:.2g} GB, "
            f"about {gpus * _DRAWN_SECONDS:.2g} s), which is supported up to {MAX_DRAWN_GPUS:,} GPUs; use fewer nodes, "
            f"or (up to {MAX_GPUS:,} GPUs) equal nodes on one tree of switches, with one uplink per GPU and no queries "
            "for single nodes"
        )
    seconds = gpus * (_DRAWN_SECONDS + per_machine * _DRAWN_BESIDE)
    check_estimated_time(
        seconds,
        f"cluster has {gpus:,} GPUs, {per_machine:,} per node; building its graph link by link would take about "
        f"{format_rough_duration(seconds)}",
        "use fewer GPUs per node, or fewer nodes",
    )


def check_link_count(links: int, kind: str) -> None:
    """Raise InputError if a cluster has too many links of a kind, such as "leaf - spine"."""
    if links > MAX_LINKS:
        raise InputError(
            f"cluster has {links:,} links {kind}; at most {MAX_LINKS:,} per kind are supported: use fewer nodes, or "
            "fewer and faster links"
        )


NamedNodes: TypeAlias = Iterable[tuple[str, dict[str, Any]]]


class RecordingGraph(nx.DiGraph):  # type: ignore[type-arg]  # at run time networkx is not generic
    """Graph of one machine that also records the order in which its links are added."""

    def __init__(self) -> None:
        super().__init__()
        self.came: list[tuple[str, str, EdgeData]] = []

    def add_edges_from(self, ebunch_to_add: Iterable[Any], **attr: Any) -> None:
        """Add links with these attributes, and record their order."""
        edges = list(ebunch_to_add)
        self.came += [(a, b, attr) for a, b in edges]
        super().add_edges_from(edges, **attr)


@dataclass(frozen=True, slots=True)
class LinkBlock:
    """Links of a draft as an array: one row per pair of nodes, and equal attributes for all links of a column.

    A column's links have ``data`` in common; two columns are the two directions. They join nodes of two ``tables``, in
    the ``places`` (columns there) that each table has for every two.
    """

    tables: tuple[Int32s, Int32s]
    places: tuple[Sequence[int], Sequence[int]]
    data: Sequence[EdgeData]

    def column_nodes(self, end_index: int, column: int) -> Int32s:
        """Return the start nodes (``end_index`` = 0) or end nodes (1) of the links in one column."""
        side = (end_index + column) % 2
        found: Int32s = self.tables[side][:, self.places[side][column // 2]]
        return found

    def nodes_at_one_end(self, end_index: int) -> Int32s:
        """Return the start nodes (``end_index`` = 0) or end nodes (1) of all links of the block."""
        columns = np.arange(len(self.data))
        return self.nodes_at(end_index, np.arange(len(self.tables[0]))[:, None], columns[None])

    def nodes_at(self, end_index: int, rows: Ints, columns: Ints) -> Int32s:
        """Return the start nodes (``end_index`` = 0) or end nodes (1) of the links in these rows and columns."""
        lower, upper = (
            table[rows, np.array(places, dtype=np.int64)[columns // 2]]
            for table, places in zip(self.tables, self.places, strict=True)
        )
        return np.where((end_index + columns) % 2, upper, lower)

    def machine_column_of(self, machines: Int32s, column: int) -> int:
        """Return the column of the node table where the links of a column begin; -1 if the links begin at switches."""
        return self.places[column % 2][column // 2] if self.tables[column % 2] is machines else -1


@dataclass
class ClusterDraft:
    """Nodes and links of a cluster under construction, as arrays.

    ``num_machines`` machines are all equal: row m of ``nodes`` are machine m's, in the order of the ``pattern``
    (machine 0 with its links), called ``domain`` m and the pattern's name after ``domain`` 0; ``runs`` are the places
    that are numbered one machine after the other, ``recorded`` and ``kinds`` what was stamped. Where a machine is a
    single GPU, ``per_host`` of them count as one.
    """

    size: int = 0
    num_machines: int = 0
    domain: str = ""
    per_host: int = 1
    pattern: Graph = field(default_factory=nx.DiGraph)
    nodes: Int32s = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int32))
    runs: list[list[int]] = field(default_factory=list)
    recorded: RecordingGraph = field(default_factory=RecordingGraph)
    kinds: Sequence[str] = ()
    switches: dict[int, tuple[str, dict[str, Any]]] = field(default_factory=dict)  # of all fabrics: name and attributes
    _named: list[Callable[[], NamedNodes]] = field(default_factory=list)
    blocks: list[LinkBlock] = field(default_factory=list)

    # --- describing --------------------------------------------------------------------------------------------------

    def add_machines(self, pattern: RecordingGraph, count: int, domain: str, kinds: Sequence[str] = ()) -> None:
        """Add ``count`` copies of a machine; number nodes machine by machine, or kind by kind if ``kinds`` is given.

        The pattern's nodes are called ``domain`` 0 and so on.
        """
        names = list(pattern)
        self.num_machines, self.domain = count, domain
        self.recorded, self.kinds = pattern, kinds
        self.pattern.add_nodes_from(pattern.nodes(data=True))
        self.pattern.add_edges_from(pattern.edges(data=True))
        self.nodes = np.empty((count, len(names)), dtype=np.int32)
        found = [pattern.nodes[node]["kind"] for node in names]
        for own in [[at for at, each in enumerate(found) if each == kind] for kind in kinds] or [[*range(len(names))]]:
            many = count * len(own)
            self.nodes[:, own] = np.arange(self.size, self.size + many, dtype=np.int32).reshape(count, len(own))
            self.runs.append(own)
            self.size += many
            self._named.append(lambda own=own: self._names_in_machines([names[place] for place in own]))  # type: ignore[misc]
        place = {node: number for number, node in enumerate(names)}
        runs = [list(run) for _, run in itertools.groupby(pattern.came, key=lambda link: id(link[2]))]
        for run in runs if kinds else [pattern.came]:  # kind by kind links come call by call, else machine by machine
            ends = [place[a] for a, *_ in run[::2]], [place[b] for _, b, _ in run[::2]]
            self.blocks.append(LinkBlock((self.nodes, self.nodes), ends, [data for *_, data in run]))

    def add_switches(self, names: Sequence[str], data: Mapping[str, Any]) -> list[int]:
        """Add switches with these names and attributes; return their node numbers."""
        numbers = list(range(self.size, self.size + len(names)))
        self.size += len(names)
        of_all = dict(data)
        self.switches.update({number: (name, of_all) for number, name in zip(numbers, names, strict=True)})
        self._named.append(lambda: ((name, dict(data)) for name in names))
        return numbers

    def connect_switches(self, lower: Sequence[int] | Numbers, upper: Sequence[int] | Numbers, data: EdgeData) -> None:
        """Add full-duplex links between pairs of switches; the two directions get adjacent numbers."""
        tables = tuple(np.asarray(each, dtype=np.int32)[:, None] for each in (lower, upper))
        self.blocks.append(LinkBlock((tables[0], tables[1]), ([0], [0]), [data, data]))

    def connect_machines(self, own: Sequence[int], switches: Sequence[int] | Numbers, data: Sequence[EdgeData]) -> None:
        """Add full-duplex links from nodes of every machine to the machine's switch; ``data`` has an entry per node."""
        tables = self.nodes, np.asarray(switches, dtype=np.int32)[:, None]
        self.blocks.append(LinkBlock(tables, (own, [0] * len(own)), [each for each in data for _ in range(2)]))

    def _names_in_machines(self, names: Sequence[str]) -> NamedNodes:
        """Generate the names and attributes of these nodes in every copy of the machine, machine by machine."""
        cut = len(self.domain) + 1
        suffixes = [(name[cut:], self.pattern.nodes[name]) for name in names]
        for machine in range(self.num_machines):
            for suffix, data in suffixes:
                own = dict(data)
                if own["kind"] == "gpu":
                    own["host"] = machine // self.per_host
                    own["local"] += machine % self.per_host
                yield f"{self.domain}{machine}{suffix}", own

    # --- what has been described -------------------------------------------------------------------------------------

    def build_graph(self) -> Graph:
        """Build and return the graph of all nodes and links."""
        found: Graph = nx.DiGraph()
        names: list[str] = []
        for named in self._named:
            block = list(named())
            names += [name for name, _ in block]
            found.add_nodes_from(block)
        for block_ in self.blocks:
            start, end = (block_.nodes_at_one_end(which).ravel().tolist() for which in (0, 1))
            data = itertools.cycle(block_.data)
            found.add_edges_from((names[a], names[b], each) for a, b, each in zip(start, end, data))  # noqa: B905
        return found

    @property
    def num_gpus(self) -> int:
        """Number of GPUs."""
        return self.num_machines * [data["kind"] for _, data in self.pattern.nodes(data=True)].count("gpu")

    def node_names(self) -> list[str]:
        """Return the names of all nodes."""
        return [name for named in self._named for name, _ in named()]

    def gpu_names(self) -> list[str]:
        """Return the names of all GPUs, machine by machine."""
        cut = len(self.domain) + 1
        own = [node[cut:] for node in self.pattern if self.pattern.nodes[node]["kind"] == "gpu"]
        return [f"{self.domain}{machine}{suffix}" for machine in range(self.num_machines) for suffix in own]

    @cached_property
    def link_attributes(self) -> list[EdgeData]:
        """Link attributes, one entry per column of every block."""
        return [data for block in self.blocks for data in block.data]
