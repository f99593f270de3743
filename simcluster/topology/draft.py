"""Draft of a cluster: nodes and links in columns before a graph is built, machines copied from one, size limits.

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
from simcluster.base.telling import require_time_limit, rough_duration
from simcluster.topology.links import EdgeData, Graph

MAX_GPUS = 2_000_000
"""Largest cluster: of a million GPUs, where it is regular, the links alone are half a gigabyte and two seconds."""
MAX_DRAWN_GPUS = 200_000
"""Largest one whose graph has to be built."""
MAX_LINKS = 4_000_000
"""Most full-duplex links per kind (GPU to NIC, leaf to spine, ...)."""
_DRAWN_BYTES, _DRAWN_SECONDS = 7e3, 90e-6  # for each GPU, with names of links and routes: DGX H100, 131,072 of them
_DRAWN_BESIDE = 2.5e-6
"""Seconds for each GPU and each in its machine, among whose nodes it looks for its NICs: 3,200 of them, 800 in each of
four machines, 3.3 s."""


def check_gpu_count(gpus: int) -> None:
    """Raise InputError for more GPUs than the simulator can handle."""
    if gpus > MAX_GPUS:
        raise InputError(f"has {gpus:,} GPUs; at most {MAX_GPUS:,} can be simulated: use fewer nodes")


def check_graph_size(gpus: int, together: int = 1) -> None:
    """Raise InputError for more GPUs than a graph can hold, with ``together`` of them in a machine."""
    if gpus > MAX_DRAWN_GPUS:
        raise InputError(
            f"has {gpus:,} GPUs, and has to be drawn link by link (about {gpus * _DRAWN_BYTES / 1e9:.2g} GB and "
            f"{gpus * _DRAWN_SECONDS:.2g} s): at most {MAX_DRAWN_GPUS:,} are, and {MAX_GPUS:,} where all machines are "
            "alike on a tree of switches, each GPU with one way out, and nothing is asked of single nodes: use fewer "
            "nodes"
        )
    seconds = gpus * (_DRAWN_SECONDS + together * _DRAWN_BESIDE)
    require_time_limit(
        seconds,
        f"has {gpus:,} GPUs, {together:,} in a machine, which would take about {rough_duration(seconds)} to draw link "
        "by link",
        "use fewer of them in a machine, or fewer machines",
    )


def check_link_count(links: int, of: str) -> None:
    """Raise InputError for more links per kind, such as "leaf - spine", than the simulator can handle."""
    if links > MAX_LINKS:
        raise InputError(
            f"has {links:,} links {of}; at most {MAX_LINKS:,} of a kind can be simulated: use fewer nodes, or fewer "
            "and faster links"
        )


Named: TypeAlias = Iterable[tuple[str, dict[str, Any]]]


class Recorder(nx.DiGraph):  # type: ignore[type-arg]  # at run time networkx is not generic
    """Graph that remembers the order in which its links were added: the pattern of a machine."""

    def __init__(self) -> None:
        super().__init__()
        self.came: list[tuple[str, str, EdgeData]] = []

    def add_edges_from(self, ebunch_to_add: Iterable[Any], **attr: Any) -> None:
        """Add links with these attributes."""
        edges = list(ebunch_to_add)
        self.came += [(a, b, attr) for a, b in edges]
        super().add_edges_from(edges, **attr)


@dataclass(frozen=True, slots=True)
class LinkBlock:
    """Links of equal attributes per column: one row per pair of nodes, in order of insertion.

    A column's links have ``data`` in common; two columns are the two directions. They join nodes of two ``tables``, in
    the ``places`` (columns there) that each table has for every two.
    """

    tables: tuple[Int32s, Int32s]
    places: tuple[Sequence[int], Sequence[int]]
    data: Sequence[EdgeData]

    def column(self, which: int, column: int) -> Int32s:
        """Return the nodes where the links of a column begin (``which`` = 0) or end (1)."""
        side = (which + column) % 2
        found: Int32s = self.tables[side][:, self.places[side][column // 2]]
        return found

    def side(self, which: int) -> Int32s:
        """Return the nodes where all links of the block begin (``which`` = 0) or end (1)."""
        columns = np.arange(len(self.data))
        return self.at(which, np.arange(len(self.tables[0]))[:, None], columns[None])

    def at(self, which: int, rows: Ints, columns: Ints) -> Int32s:
        """Return the nodes where the links in these rows and columns begin (``which`` = 0) or end (1)."""
        lower, upper = (
            table[rows, np.array(places, dtype=np.int64)[columns // 2]]
            for table, places in zip(self.tables, self.places, strict=True)
        )
        return np.where((which + columns) % 2, upper, lower)

    def begin(self, machines: Int32s, column: int) -> int:
        """Return the column of ``machines`` (table of nodes) where a column of links begins; -1 if at switches."""
        return self.places[column % 2][column // 2] if self.tables[column % 2] is machines else -1


@dataclass
class Draft:
    """Nodes and links of a cluster under construction.

    ``stamped`` machines are all equal: row m of ``nodes`` are machine m's, in the order of the ``pattern`` (machine 0
    with its links), called ``domain`` m and the pattern's name after ``domain`` 0; ``runs`` are the places that are
    numbered one machine after the other, ``recorded`` and ``kinds`` what was stamped. Where a machine is a single GPU,
    ``per_host`` of them count as one.
    """

    size: int = 0
    stamped: int = 0
    domain: str = ""
    per_host: int = 1
    pattern: Graph = field(default_factory=nx.DiGraph)
    nodes: Int32s = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int32))
    runs: list[list[int]] = field(default_factory=list)
    recorded: Recorder = field(default_factory=Recorder)
    kinds: Sequence[str] = ()
    switches: dict[int, tuple[str, dict[str, Any]]] = field(default_factory=dict)  # of all fabrics: name and attributes
    _named: list[Callable[[], Named]] = field(default_factory=list)
    blocks: list[LinkBlock] = field(default_factory=list)

    # --- describing --------------------------------------------------------------------------------------------------

    def stamp(self, pattern: Recorder, count: int, domain: str, kinds: Sequence[str] = ()) -> None:
        """Add ``count`` machines like the pattern, by machine, or by kind of node where ``kinds`` are given.

        The pattern's nodes are called ``domain`` 0 and so on.
        """
        names = list(pattern)
        self.stamped, self.domain = count, domain
        self.recorded, self.kinds = pattern, kinds
        self.pattern.add_nodes_from(pattern.nodes(data=True))
        self.pattern.add_edges_from(pattern.edges(data=True))
        self.nodes = np.empty((count, len(names)), dtype=np.int32)
        kind_of = [pattern.nodes[node]["kind"] for node in names]
        for own in [[place for place, each in enumerate(kind_of) if each == kind] for kind in kinds] or [
            [*range(len(names))]
        ]:
            many = count * len(own)
            self.nodes[:, own] = np.arange(self.size, self.size + many, dtype=np.int32).reshape(count, len(own))
            self.runs.append(own)
            self.size += many
            self._named.append(lambda own=own: self._copied_names([names[place] for place in own]))  # type: ignore[misc]
        place = {node: number for number, node in enumerate(names)}
        runs = [list(run) for _, run in itertools.groupby(pattern.came, key=lambda link: id(link[2]))]
        for run in runs if kinds else [pattern.came]:  # kind by kind links come call by call, else machine by machine
            ends = [place[a] for a, *_ in run[::2]], [place[b] for _, b, _ in run[::2]]
            self.blocks.append(LinkBlock((self.nodes, self.nodes), ends, [data for *_, data in run]))

    def add_switches(self, names: Sequence[str], data: Mapping[str, Any]) -> list[int]:
        """Add switches of a fabric; return their numbers."""
        numbers = list(range(self.size, self.size + len(names)))
        self.size += len(names)
        of_all = dict(data)
        self.switches.update({number: (name, of_all) for number, name in zip(numbers, names, strict=True)})
        self._named.append(lambda: ((name, dict(data)) for name in names))
        return numbers

    def connect(self, lower: Sequence[int] | Numbers, upper: Sequence[int] | Numbers, data: EdgeData) -> None:
        """Add full-duplex links between switches, both directions of a link next to each other."""
        tables = tuple(np.asarray(each, dtype=np.int32)[:, None] for each in (lower, upper))
        self.blocks.append(LinkBlock((tables[0], tables[1]), ([0], [0]), [data, data]))

    def attach(self, places: Sequence[int], switches: Sequence[int] | Numbers, data: Sequence[EdgeData]) -> None:
        """Add full-duplex links from these places of every machine to its switch, with ``data`` per place."""
        tables = self.nodes, np.asarray(switches, dtype=np.int32)[:, None]
        self.blocks.append(LinkBlock(tables, (places, [0] * len(places)), [each for each in data for _ in range(2)]))

    def _copied_names(self, names: Sequence[str]) -> Named:
        """Return the names of the pattern's nodes in every machine, machine by machine."""
        cut = len(self.domain) + 1
        suffixes = [(name[cut:], self.pattern.nodes[name]) for name in names]
        for machine in range(self.stamped):
            for suffix, data in suffixes:
                own = dict(data)
                if own["kind"] == "gpu":
                    own["host"] = machine // self.per_host
                    own["local"] += machine % self.per_host
                yield f"{self.domain}{machine}{suffix}", own

    # --- what has been described -------------------------------------------------------------------------------------

    def graph(self) -> Graph:
        """Return the graph of all nodes and links."""
        found: Graph = nx.DiGraph()
        names: list[str] = []
        for named in self._named:
            block = list(named())
            names += [name for name, _ in block]
            found.add_nodes_from(block)
        for block_ in self.blocks:
            start, end = (block_.side(which).ravel().tolist() for which in (0, 1))
            data = itertools.cycle(block_.data)
            found.add_edges_from((names[a], names[b], each) for a, b, each in zip(start, end, data))  # noqa: B905
        return found

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.stamped * [data["kind"] for _, data in self.pattern.nodes(data=True)].count("gpu")

    def names(self) -> list[str]:
        """Return the names of all nodes."""
        return [name for named in self._named for name, _ in named()]

    def gpu_names(self) -> list[str]:
        """Return the names of all GPUs, machine by machine."""
        cut = len(self.domain) + 1
        own = [node[cut:] for node in self.pattern if self.pattern.nodes[node]["kind"] == "gpu"]
        return [f"{self.domain}{machine}{suffix}" for machine in range(self.stamped) for suffix in own]

    @cached_property
    def sorts(self) -> list[EdgeData]:
        """Attributes of links, block by block and column by column."""
        return [data for block in self.blocks for data in block.data]
