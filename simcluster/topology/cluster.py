"""Cluster as a graph with numbered links, from which rings are built and bandwidth is shared.

Graph conventions (``networkx.DiGraph``, one edge per direction)

* node: ``kind`` in gpu / nvswitch / pcie / nic / switch / host; a gpu also has ``host`` (index of its machine) and
  ``local`` (index in the machine), a switch has ``tier`` ("leaf", "spine", ...); NICs and switches of another network
  than the collectives' (storage, management) have ``network``, its name, and no route uses them; a nic that represents
  several has ``ports``, a gpu in a rack of trays has ``tray``;
* edge: ``line_rate`` (B/s, what the standard says), ``efficiency`` (0..1], ``bandwidth`` = line_rate x efficiency (B/s,
  payload), ``latency`` (s), ``source`` (where the numbers come from), ``medium`` ("nvlink", "pcie", "infiniband", ...).

Static: nothing that happens at run time is stored here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import networkx as nx
import numpy as np

from simcluster.base.arrays import Floats, Int32s, Ints, distinct_hashes, float_bits, hash64, sum_segments
from simcluster.base.errors import InputError
from simcluster.base.link_columns import LinkValues, PerLink, TreeFlows
from simcluster.base.shown import Displayable
from simcluster.base.texts import nearest_words
from simcluster.topology.access_paths import Spread
from simcluster.topology.draft import Draft, check_graph_size
from simcluster.topology.policies import STATIC, RoutingSpec
from simcluster.topology.regular import Regular
from simcluster.topology.routing import Router
from simcluster.topology.wiring import LinkKind, Wiring

if TYPE_CHECKING:
    from numpy.typing import NDArray

Device: TypeAlias = str | Mapping[str, object]


@dataclass(frozen=True, eq=False)
class Cluster(Displayable):
    """GPUs, switches and directed links, each link with a capacity and a latency.

    ``gpus`` are the nodes in the order in which ranks are placed (machine by machine); everywhere else a GPU is its
    index in ``gpus`` and a link its index in ``links``. ``device`` is the GPU's name in the device catalogue, or an
    inline device document, ``nccl`` the platform that NCCL would take the nodes for, if one is named;
    ``machines_per_site`` is 0 where all are on one site. ``graph``, names, links and their ``capacity`` and ``latency``
    in arrays are made on demand, where the cluster is so regular that routes need none of them: ``link_capacity`` and
    ``link_latency`` return those of some links.
    """

    name: str
    host_of: tuple[int, ...]
    device: Device
    link_capacity: LinkValues = field(repr=False)
    link_latency: LinkValues = field(repr=False)
    wiring: Wiring = field(repr=False)
    nccl: str | None = None
    machines_per_site: int = 0

    @cached_property
    def graph(self) -> nx.DiGraph[str]:
        """Graph of all nodes and links, with the conventions of the module."""
        if not (changed := self.link_capacity.changed_links(self.wiring.link_capacity).tolist()):
            return self.wiring.graph
        graph = self.wiring.graph.copy()
        for link in changed:
            a, b = self.links[link]
            graph[a][b]["bandwidth"] = float(self.capacity[link])
        return graph

    @property
    def capacity(self) -> Floats:
        """Capacity of every link (B/s)."""
        return self.link_capacity.all

    @property
    def latency(self) -> Floats:
        """Latency of every link (s)."""
        return self.link_latency.all

    @property
    def num_gpus(self) -> int:
        """Number of GPUs; no names are made for it."""
        return len(self.host_of)

    @property
    def gpus(self) -> tuple[str, ...]:
        """Names of the GPUs."""
        return self.wiring.gpus

    @property
    def links(self) -> tuple[tuple[str, str], ...]:
        """Names of the two ends of each link."""
        return self.wiring.links

    @property
    def switches(self) -> tuple[str, ...]:
        """Switches of the collectives' network; no graph is made for them."""
        return self.wiring.switches

    @property
    def link_index(self) -> dict[tuple[str, str], int]:
        """Number of a link by the names of its ends."""
        return self.wiring.link_index

    @property
    def router(self) -> Router:
        """Router of single flows, on the graph."""
        return self.wiring.router

    def named(self, links: Ints) -> list[tuple[str, str]]:
        """Return the names of both ends of some links, without building a graph if all nodes are equal."""
        return self.wiring.named(links)

    def kinds(self, links: Ints) -> tuple[Ints, list[LinkKind]]:
        """Return the kind number of some links, and the list of kinds (report labels of both ends, medium)."""
        return self.wiring.kinds(links)

    @cached_property
    def media(self) -> tuple[NDArray[np.int16], list[str]]:
        """Number of the medium of every link, and the list of media."""
        number, kinds = self.kinds(np.arange(len(self.link_capacity)))
        media = list(dict.fromkeys(kind.medium for kind in kinds))
        return np.array([media.index(kind.medium) for kind in kinds], dtype=np.int16)[number], media

    def route(self, src: int, dst: int) -> tuple[int, ...]:
        """Return the links from GPU ``src`` to GPU ``dst``, in order; empty when they are the same.

        Shortest in hops (see ``routing``); one of several paths where the cluster's routing takes several. InputError
        when there is no path.
        """
        return self.router.route(src, dst)

    def spread(self, src: int, dst: int, flow: int = 0) -> Spread:
        """Return (link, fraction of the bytes) of flow number ``flow`` from GPU ``src`` to ``dst``.

        What enters a node leaves it: fractions are exact. Empty for the same GPU; InputError when there is no path.
        """
        return self.router.spread(src, dst, flow)

    def routes(
        self, src: NDArray[np.int64], dst: NDArray[np.int64], flow: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Return routes of many flows as rows (flow, link, fraction), sorted by flow, and the latency (s) of each."""
        row, link, fraction = self.wiring.rows(src, dst, flow)
        return row, link, fraction, self.latencies(row, link, fraction, len(src))

    def loads(self, flows: TreeFlows) -> PerLink | None:
        """Return the number of flows on every link; None if some routes have no closed form."""
        return self.wiring.loads(flows)

    def latencies(
        self, row: NDArray[np.int64], link: NDArray[np.int64], fraction: NDArray[np.float64], rows: int
    ) -> NDArray[np.float64]:
        """Return the latencies (s) of many routes, whose links are given as rows sorted by route and link."""
        if not len(link):
            return np.zeros(rows)
        seconds = fraction * self.link_latency.of(link)
        starts = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))])
        whole = sum_segments(hash64(float_bits(seconds)), starts)
        kinds = distinct_hashes(whole)
        alike = np.searchsorted(kinds, whole)
        first = np.empty(len(kinds), dtype=np.int64)
        first[alike[::-1]] = np.arange(rows)[::-1]
        each = [math.fsum(seconds[starts[place] : starts[place + 1]].tolist()) for place in first.tolist()]
        return np.array(each)[alike]

    def spread_latency(self, spread: Spread) -> float:
        """Return the latency (s) of a flow along its links: the mean over its bytes.

        On one path that is ``path_latency``, and on several as good as theirs, because they have equally many hops. The
        mean, as a round of a collective pays the mean over its hops (``traffic``).
        """
        return math.fsum([fraction * self.latency[link] for link, fraction in spread])

    def uplinks(self, gpu: int) -> tuple[str, ...]:
        """Return the NICs by which a GPU leaves its node in the fewest hops (the GPU if it has a switch port)."""
        return self.wiring.uplinks(gpu)

    def nvswitch(self, gpu: int) -> str:
        """Return the NVSwitch that this GPU is linked to; "" for none."""
        return self.wiring.nvswitch(gpu)

    @property
    def meshed(self) -> bool:
        """Whether the GPUs of a node are linked to each other directly, every one to every other."""
        return self.wiring.meshed

    def seats(self, gpus: Ints) -> tuple[Int32s, Int32s]:
        """Return numbers of the NVSwitch (0: none) and of the NICs (-1 after the last) of some GPUs."""
        return self.wiring.seats(gpus)

    def far(self, hosts: Sequence[int] | NDArray[np.int64]) -> bool:
        """Return whether these nodes (by number) are on several sites."""
        each = self.machines_per_site
        return bool(each and len(hosts) and int(max(hosts)) // each != int(min(hosts)) // each)

    @property
    def hosts(self) -> NDArray[np.int64]:
        """Node number of every GPU, as an array."""
        return self.wiring.hosts

    def switch_ways(self, gpus: Sequence[int], turn: int) -> tuple[tuple[Spread, Spread], ...]:
        """Return for each GPU its route to the switch in which all of them meet, and the route back.

        The NVSwitch of them all, or else the switch of the fabric that is nearest to all: number ``turn`` of those (see
        ``switch_trees``). InputError when there is none.
        """
        return self.wiring.switch_ways(gpus, turn)

    def host_way(self, gpu: int, direction: str) -> Spread:
        """Return the links from a GPU to its host's memory ("d2h"), back ("h2d"), or on to "storage" or "peers".

        See ``wiring``. InputError without any.
        """
        return self.wiring.host_way(gpu, direction)

    def box_of(self, gpu: int) -> tuple[int, int]:
        """Return the node and, in a rack, the tray (0 without trays) whose memory the GPU copies to."""
        return self.host_of[gpu], self.wiring.tray(gpu)

    def path_latency(self, links: Iterable[int]) -> float:
        """Return the latency (s) of the first byte along these links: the exact sum of theirs."""
        return math.fsum(self.latency[list(links)].tolist())

    def path_bandwidth(self, links: Sequence[int]) -> float:
        """Return the bandwidth (B/s) of a lone flow along these links; infinite for no link."""
        return float(self.capacity[list(links)].min()) if links else math.inf

    def scaled(self, faults: Iterable[tuple[str, str, float]]) -> Cluster:
        """Return the cluster with the links between nodes a and b, both directions, at ``factor`` of their capacity.

        Routes do not change: traffic is not rerouted around a slow cable. Factors on one link multiply. InputError for
        an unknown node, for two nodes with no link between them, and for a factor that is not positive.
        """
        found = [(link, factor) for a, b, factor in faults for link in self._links_to_scale(a, b, factor)]
        return replace(self, link_capacity=self.link_capacity.multiply(found)) if found else self

    def _links_to_scale(self, a: str, b: str, factor: float) -> list[int]:
        if not (math.isfinite(factor) and factor > 0):
            raise InputError(
                f"link {a} - {b}: factor {factor!r} must be a positive number, such as 0.5 for half the speed"
            )
        return self.links_between(a, b)

    def links_between(self, a: str, b: str) -> list[int]:
        """Return the links between two neighbours, both directions; raise InputError if there are none."""
        for node in (a, b):
            if not self.wiring.has(node):
                raise InputError(f"link {a} - {b}: no node {node!r} in cluster {self.name!r}{self._near_nodes(node)}")
        found = [self.link_index[pair] for pair in ((a, b), (b, a)) if pair in self.link_index]
        if not found:
            neighbours = ", ".join(list(self.graph.adj[a])[:4])
            raise InputError(f"link {a} - {b}: cluster {self.name!r} has no such link; {a} is linked to {neighbours}")
        return found

    def _near_nodes(self, name: str) -> str:
        inside = [str(node) for node in self.graph if str(node).startswith(f"{name}.")]  # of a machine
        close = inside[:3] or nearest_words(name, self.graph, cutoff=0.5, most=3)
        nodes = ", ".join(close or list(self.graph)[:4])
        return f"; did you mean {nodes}?" if close else f"; its nodes are {nodes}, ..."


def make_cluster(
    name: str, device: Device, graph: nx.DiGraph[str], routing: RoutingSpec = STATIC, nccl: str | None = None
) -> Cluster:
    """Make a cluster from a graph that follows the module's conventions: number GPUs and links, and check it.

    InputError when there is no GPU, a link has no positive bandwidth or a negative latency, or two GPUs cannot reach
    each other.
    """
    hosts = {node: (data["host"], data["local"]) for node, data in graph.nodes(data=True) if data["kind"] == "gpu"}
    if not hosts:
        raise InputError(f"cluster {name!r} has no GPU; it needs at least one node of kind gpu; add it to nodes")
    gpus = tuple(sorted(hosts, key=lambda node: hosts[node]))
    _check_links(name, graph.edges(data=True))
    host_of = tuple(hosts[gpu][0] for gpu in gpus)
    wiring = Wiring(graph, gpus, host_of, routing)
    wiring.router.check_reachable()
    return Cluster(name, host_of, device, wiring.link_capacity, wiring.link_latency, wiring, nccl)


def cluster_of_draft(
    name: str, device: Device, draft: Draft, routing: RoutingSpec = STATIC, nccl: str | None = None
) -> Cluster:
    """Make a cluster from a draft; the graph is made only if the cluster is not regular, or on demand."""
    good = all(0 < data["bandwidth"] < math.inf and 0 <= data["latency"] < math.inf for data in draft.sorts)
    wiring = Regular.of(draft, routing) if good else None
    if wiring is None:
        check_graph_size(draft.gpus, draft.gpus // max(1, draft.stamped))
        return make_cluster(name, device, draft.graph(), routing, nccl)
    machines = np.arange(int(wiring.hosts[-1]) + 1).astype(object)  # the GPUs of a machine have one object
    host_of = tuple(machines[wiring.hosts].tolist())
    return Cluster(name, host_of, device, wiring.link_capacity, wiring.link_latency, wiring, nccl)


def _check_links(name: str, links: Iterable[tuple[str, str, dict[str, Any]]]) -> None:
    for a, b, data in links:
        if not (data["bandwidth"] > 0 and math.isfinite(data["bandwidth"])):
            raise InputError(f"cluster {name!r}: link {a} - {b} has {data['bandwidth']!r} B/s; it must be positive")
        if not (data["latency"] >= 0 and math.isfinite(data["latency"])):
            raise InputError(
                f"cluster {name!r}: link {a} - {b} has latency {data['latency']!r} s; it must be 0 or more"
            )
