"""Cluster: a graph of GPUs, NICs, switches and links, with routes and capacities by link number.

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
from simcluster.base.display import Displayable
from simcluster.base.errors import InputError
from simcluster.base.link_columns import LinkColumn, LinkValues, TreeFlows
from simcluster.base.texts import find_similar_words
from simcluster.topology.access_paths import Spread
from simcluster.topology.draft import ClusterDraft, check_graph_size
from simcluster.topology.policies import STATIC, RoutingSpec
from simcluster.topology.regular_wiring import RegularWiring
from simcluster.topology.routing import Router
from simcluster.topology.wiring import LinkKind, Wiring

if TYPE_CHECKING:
    from numpy.typing import NDArray

Device: TypeAlias = str | Mapping[str, object]


@dataclass(frozen=True, eq=False)
class Cluster(Displayable):
    """GPUs, switches and directed links of a cluster, each link with a capacity and a latency.

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
        """Graph of all nodes and links; the module's docstring lists their attributes."""
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
        return self.link_capacity.all_values

    @property
    def latency(self) -> Floats:
        """Latency of every link (s)."""
        return self.link_latency.all_values

    @property
    def num_gpus(self) -> int:
        """Number of GPUs, known without creating their names."""
        return len(self.host_of)

    @property
    def gpus(self) -> tuple[str, ...]:
        """Names of the GPUs."""
        return self.wiring.gpus

    @property
    def links(self) -> tuple[tuple[str, str], ...]:
        """Names of both ends of every link."""
        return self.wiring.links

    @property
    def switches(self) -> tuple[str, ...]:
        """Names of the switches of the network that collectives use; available without building the graph."""
        return self.wiring.switches

    @property
    def link_index(self) -> dict[tuple[str, str], int]:
        """Link numbers by the names of both ends."""
        return self.wiring.link_index

    @property
    def router(self) -> Router:
        """Router of single flows on the cluster's graph."""
        return self.wiring.router

    def link_names(self, links: Ints) -> list[tuple[str, str]]:
        """Return the names of both ends of these links; a cluster of equal nodes needs no graph for this."""
        return self.wiring.link_names(links)

    def link_kinds(self, links: Ints) -> tuple[Ints, list[LinkKind]]:
        """Return each link's kind number, and the list of link kinds (labels of both ends, and the medium)."""
        return self.wiring.link_kinds(links)

    @cached_property
    def link_media(self) -> tuple[NDArray[np.int16], list[str]]:
        """Return each link's medium as an index into the list of media, and that list."""
        number, kinds = self.link_kinds(np.arange(len(self.link_capacity)))
        media = list(dict.fromkeys(kind.medium for kind in kinds))
        return np.array([media.index(kind.medium) for kind in kinds], dtype=np.int16)[number], media

    def route(self, src: int, dst: int) -> tuple[int, ...]:
        """Return the links from GPU ``src`` to GPU ``dst``, in order; empty if they are the same GPU.

        Shortest in hops (see ``routing``); one of several paths where the cluster's routing takes several. InputError
        when there is no path.
        """
        return self.router.route(src, dst)

    def spread_route(self, src: int, dst: int, flow: int = 0) -> Spread:
        """Return (link, fraction of the bytes) for each link that flow number ``flow`` crosses.

        What enters a node leaves it: fractions are exact. Empty for the same GPU; InputError when there is no path.
        """
        return self.router.spread_route(src, dst, flow)

    def route_rows(
        self, src: NDArray[np.int64], dst: NDArray[np.int64], flow: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Return the routes of many flows as rows (flow, link, fraction), and the latency (s) of each flow."""
        row, link, fraction = self.wiring.route_rows(src, dst, flow)
        return row, link, fraction, self.route_latencies(row, link, fraction, len(src))

    def tree_link_loads(self, flows: TreeFlows) -> LinkColumn | None:
        """Return the number of flows that a double tree puts on every link; None if there is no closed form."""
        return self.wiring.tree_link_loads(flows)

    def route_latencies(
        self, row: NDArray[np.int64], link: NDArray[np.int64], fraction: NDArray[np.float64], rows: int
    ) -> NDArray[np.float64]:
        """Return the latencies (s) of many routes, given as rows sorted by route and link."""
        if not len(link):
            return np.zeros(rows)
        seconds = fraction * self.link_latency.values_at(link)
        starts = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))])
        whole = sum_segments(hash64(float_bits(seconds)), starts)
        kinds = distinct_hashes(whole)
        alike = np.searchsorted(kinds, whole)
        first = np.empty(len(kinds), dtype=np.int64)
        first[alike[::-1]] = np.arange(rows)[::-1]
        each = [math.fsum(seconds[starts[place] : starts[place + 1]].tolist()) for place in first.tolist()]
        return np.array(each)[alike]

    def mean_route_latency(self, spread: Spread) -> float:
        """Return the latency (s) of a flow, averaged over the flow's bytes if they take several paths.

        On one path that is ``path_latency``, and on several as good as theirs, because they have equally many hops. The
        mean, as a round of a collective pays the mean over its hops (``traffic``).
        """
        return math.fsum([fraction * self.latency[link] for link, fraction in spread])

    def exit_nics(self, gpu: int) -> tuple[str, ...]:
        """Return the NICs through which a GPU's traffic leaves the node in the fewest hops; without NICs, the GPU."""
        return self.wiring.exit_nics(gpu)

    def nvswitch(self, gpu: int) -> str:
        """Return the name of the GPU's NVSwitch; "" if it has none."""
        return self.wiring.nvswitch(gpu)

    @property
    def meshed(self) -> bool:
        """Whether every GPU of a node has a direct link to every other GPU of the node."""
        return self.wiring.meshed

    def nvswitch_and_nic_numbers(self, gpus: Ints) -> tuple[Int32s, Int32s]:
        """Return each GPU's NVSwitch number (0: none) and its NIC numbers (padded with -1)."""
        return self.wiring.nvswitch_and_nic_numbers(gpus)

    def spans_sites(self, hosts: Sequence[int] | NDArray[np.int64]) -> bool:
        """Return whether these nodes (given by number) are at more than one site."""
        each = self.machines_per_site
        return bool(each and len(hosts) and int(max(hosts)) // each != int(min(hosts)) // each)

    @property
    def node_of_gpu(self) -> NDArray[np.int64]:
        """Node number of every GPU, as an array."""
        return self.wiring.hosts

    def routes_to_common_switch(self, gpus: Sequence[int], turn: int) -> tuple[tuple[Spread, Spread], ...]:
        """Return, for each GPU, the route to the switch where all these GPUs' paths meet, and the route back.

        The NVSwitch of them all, or else the switch of the fabric that is nearest to all: number ``turn`` of those (see
        ``find_paths_to_common_switch``). InputError when there is none.
        """
        return self.wiring.routes_to_common_switch(gpus, turn)

    def host_memory_route(self, gpu: int, direction: str) -> Spread:
        """Return the links from GPU to host memory ("d2h"), back ("h2d"), or from host memory to "storage" or "peers".

        See ``wiring``. InputError without any.
        """
        return self.wiring.host_memory_route(gpu, direction)

    def node_and_tray(self, gpu: int) -> tuple[int, int]:
        """Return a GPU's node and tray (0 outside a rack), which identify the host memory that the GPU copies to."""
        return self.host_of[gpu], self.wiring.tray_of_gpu(gpu)

    def path_latency(self, links: Iterable[int]) -> float:
        """Return the latency (s) of the first byte along these links: the sum of their latencies."""
        return math.fsum(self.latency[list(links)].tolist())

    def path_bandwidth(self, links: Sequence[int]) -> float:
        """Return the bandwidth (B/s) of a single flow along these links; infinite if there are none."""
        return float(self.capacity[list(links)].min()) if links else math.inf

    def with_scaled_links(self, faults: Iterable[tuple[str, str, float]]) -> Cluster:
        """Return a copy of the cluster in which each link (a, b) in ``faults`` has its capacity multiplied by a factor.

        Routes do not change: traffic is not rerouted around a slow cable. Factors on one link multiply. InputError for
        an unknown node, for two nodes with no link between them, and for a factor that is not positive.
        """
        found: list[tuple[int, float]] = []
        for a, b, factor in faults:
            if not (math.isfinite(factor) and factor > 0):
                what = f"factor is {factor!r}, but must be above 0, such as 0.5 for half the speed"
                raise InputError(f"link {a} - {b}: {what}")
            found += [(link, factor) for link in self.links_between(a, b)]
        return replace(self, link_capacity=self.link_capacity.multiply(found)) if found else self

    def links_between(self, a: str, b: str) -> list[int]:
        """Return the links between two adjacent nodes, in both directions; raise InputError if there are none."""
        for end in (a, b):
            if not self.wiring.has_node(end):
                near = self._suggest_node_names(end)
                raise InputError(f"link {a} - {b}: no node {end!r} in cluster {self.name!r}{near}")
        found = [self.link_index[pair] for pair in ((a, b), (b, a)) if pair in self.link_index]
        if not found:
            neighbours = ", ".join(list(self.graph.adj[a])[:4])
            raise InputError(f"link {a} - {b}: cluster {self.name!r} has no such link; {a} is linked to {neighbours}")
        return found

    def _suggest_node_names(self, name: str) -> str:
        inside = [str(node) for node in self.graph if str(node).startswith(f"{name}.")]  # of a machine
        close = inside[:3] or find_similar_words(name, self.graph, cutoff=0.5, most=3)
        nodes = ", ".join(close or list(self.graph)[:4])
        return f"; did you mean {nodes}?" if close else f"; its nodes are {nodes}, ..."


def make_cluster(
    name: str, device: Device, graph: nx.DiGraph[str], routing: RoutingSpec = STATIC, nccl: str | None = None
) -> Cluster:
    """Build a cluster from a graph after a check of the graph's attributes, which the module's docstring lists.

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


def make_cluster_from_draft(
    name: str, device: Device, draft: ClusterDraft, routing: RoutingSpec = STATIC, nccl: str | None = None
) -> Cluster:
    """Build a cluster from a draft; if the cluster is regular, build the graph only on demand."""
    good = all(0 < data["bandwidth"] < math.inf and 0 <= data["latency"] < math.inf for data in draft.link_attributes)
    wiring = RegularWiring.from_draft(draft, routing) if good else None
    if wiring is None:
        check_graph_size(draft.num_gpus, draft.num_gpus // max(1, draft.num_machines))
        return make_cluster(name, device, draft.build_graph(), routing, nccl)
    machines = np.arange(int(wiring.hosts[-1]) + 1).astype(object)  # the GPUs of a machine have one object
    host_of = tuple(machines[wiring.hosts].tolist())
    return Cluster(name, host_of, device, wiring.link_capacity, wiring.link_latency, wiring, nccl)


def _check_links(name: str, links: Iterable[tuple[str, str, dict[str, Any]]]) -> None:
    for a, b, data in links:
        if not (data["bandwidth"] > 0 and math.isfinite(data["bandwidth"])):
            raise InputError(f"cluster {name!r}: link {a} - {b} has {data['bandwidth']!r} B/s; it must be above 0")
        if not (data["latency"] >= 0 and math.isfinite(data["latency"])):
            raise InputError(
                f"cluster {name!r}: link {a} - {b} has latency {data['latency']!r} s; it must be 0 or more"
            )
