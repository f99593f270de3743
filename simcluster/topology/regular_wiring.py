"""Fast path: clusters of equal machines on a tree of switches, routed in closed form without a graph.

What is otherwise found in a graph follows here from numbers: of machines, their parts and switches. One machine with
its leaves is a graph, and shows how its GPUs leave and are entered. The same bits come out; where a cluster is not so
regular, ``None``, and the graph is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import networkx as nx
import numpy as np

from simcluster.base.arrays import Int32s, Ints
from simcluster.base.errors import InputError
from simcluster.base.link_columns import LinkValues
from simcluster.base.texts import natural_sort_key, natural_sort_keys
from simcluster.topology.access_paths import Spread
from simcluster.topology.batch_routing import BatchRouting
from simcluster.topology.draft import ClusterDraft
from simcluster.topology.links import Graph, collective_network
from simcluster.topology.numbering import LinkNumbers
from simcluster.topology.policies import RoutingSpec
from simcluster.topology.switch_links import ClusterColumns, EqualMachines, LeafLinks, SwitchLinks
from simcluster.topology.wiring import Wiring

PROVED = {
    "routing": frozenset({"shortest", "static", "ecmp", "adaptive"}),
    "link": frozenset({"bandwidth", "latency", "medium", "line_rate", "efficiency", "source"}),
}
"""Policies of routing and what a link may say for itself, of which the closed form gives a graph's routes to the bit
(tests/test_paths.py); with any other the graph is asked."""


class RegularWiring(BatchRouting):
    """Wiring of a regular cluster, computed in closed form from a draft; the graph is built only on demand."""

    def __init__(self, draft: ClusterDraft, numbers: LinkNumbers, routing: RoutingSpec) -> None:
        self.draft, self.numbers, self.routing = draft, numbers, routing
        self.link_capacity, self.link_latency = (
            LinkValues(np.array([data[key] for data in draft.link_attributes], dtype=np.float64), numbers.sorts)
            for key in ("bandwidth", "latency")
        )
        self.one = self._wiring_of_machine_0()
        self._size, self.ways = len(self.one.gpus), self.one.router.ways
        self.hosts = np.repeat(np.arange(draft.num_machines) // draft.per_host, self._size)
        self._host_way = cache(self.one.host_memory_route)
        self.has_storage_nics, self.meshed = self.one.has_storage_nics, self.one.meshed

    @classmethod
    def from_draft(cls, draft: ClusterDraft, routing: RoutingSpec) -> RegularWiring | None:
        """Return the closed-form wiring of a draft, or None if the cluster is not regular.

        None where machines are linked to each other directly, too: they must leave by switches; and where routing or
        links have features that are not PROVED.
        """
        said = frozenset(key for data in draft.link_attributes for key in data)
        if routing.kind not in PROVED["routing"] or not said <= PROVED["link"]:
            return None
        numbers = LinkNumbers.from_draft(draft) if draft.num_machines else None
        if numbers is None or not nx.is_weakly_connected(collective_network(draft.pattern)):
            return None
        found = cls(draft, numbers, routing)
        ways = [found._path_to_leaf(place) for place in range(found._size)]
        if not all(ways):
            return None
        found._build_routing_arrays(ways)
        return found if found._connects_all_gpus() else None

    def _path_to_leaf(self, place: int) -> list[str]:
        """Return the graph nodes from a GPU of machine 0 to its leaf switch; empty if the path is not unique."""
        near = self.ways.near
        if len(near.exits[place]) != 1 or near.exits[place] != near.entries[place]:
            return []
        gpu, (port,) = self.one.gpus[place], near.exits[place]
        there, back = (self.ways.unique_path_within_machine(*ends) for ends in ((gpu, port.node), (port.node, gpu)))
        return [] if there is None or back is None or there != back[::-1] else [*there, port.switch]

    def _build_routing_arrays(self, paths: Sequence[Sequence[str]]) -> None:
        """Compute the arrays that routing of many flows and symmetry search use."""
        draft = self.draft
        own = [number for number, (_, data) in draft.switches.items() if "network" not in data]
        named = dict(zip(own, natural_sort_keys([draft.switches[number][0] for number in own]), strict=True))
        switches = sorted(own, key=named.__getitem__)
        inside = natural_sort_key(f"{draft.domain}0")[0]
        behind = np.array([named[switch][0] > inside for switch in switches])  # all machines, by name
        position = np.arange(len(switches)) + behind * draft.num_machines * len(collective_network(draft.pattern))
        numbers = self.numbers
        self.machines = machines = EqualMachines(draft.num_machines, self._size, numbers)
        links = [[self.one.link_index[hop] for hop in pairwise(way)][::-1] for way in paths]
        self._nics = [way[-2] for way in paths]
        hops = SwitchLinks.from_link_numbers(numbers, switches, draft.nodes.size)
        self.ends = LeafLinks.from_machine_paths(machines, links, self._nics, draft, hops, position)
        sorts = [(data["bandwidth"], data["latency"]) for data in draft.link_attributes]
        number = {sort: place for place, sort in enumerate(dict.fromkeys(sorts))}
        kind = np.array([number[sort] for sort in sorts]).astype(np.min_scalar_type(len(number)))
        self.ground = ClusterColumns.from_parts(machines, self.ends, hops, kind)

    def _connects_all_gpus(self) -> bool:
        """Return whether all GPUs reach each other, over one fabric or by NVLink to a GPU on the other rail."""
        parts = self.ends.part[self.ends.leaf].reshape(self.machines.gpu_numbers.shape)
        self.one_fabric = self.machines.count == 1 or bool((parts == parts[0, 0]).all())
        mates = self.ways.nvlink_peers(0)
        together = self.routing.pxn is not False and len(mates) == self._size - 1
        return self.one_fabric or (together and bool((parts == parts[0]).all()))

    # --- single GPUs: what is so in machine 0, by name and by column of links ----------------------------------------

    def exit_nics(self, gpu: int) -> tuple[str, ...]:
        return (self._name_in_machine(gpu, self._nics[gpu % self._size]),)

    def nvswitch(self, gpu: int) -> str:
        return self._name_in_machine(gpu, self.one.nvswitch(gpu % self._size))

    def _name_in_machine(self, gpu: int, node: str) -> str:
        """Return the name that a node of machine 0 has in the GPU's machine; "" stays ""."""
        domain = self.draft.domain
        return f"{domain}{gpu // self._size}{node[len(domain) + 1 :]}" if node else ""

    def nvswitch_and_nic_numbers(self, gpus: Ints) -> tuple[Int32s, Int32s]:
        size, (switches, nics) = np.int32(self._size), self.one.all_nvswitch_and_nic_numbers
        machine = gpus.astype(np.int32) // size  # numpy's divmod is ten times as slow
        place = gpus - machine * size
        machine *= max(switches.max(), nics.max())
        return np.where(switches[place] > 0, switches[place] + machine, 0), nics[place] + machine[:, None]

    def nvswitch_routes(self, gpu: int) -> tuple[Spread, Spread]:
        up, down = self.one.nvswitch_routes(gpu % self._size)
        return self._move_to_machine(gpu, up), self._move_to_machine(gpu, down)

    def host_memory_route(self, gpu: int, direction: str) -> Spread:
        try:
            return self._move_to_machine(gpu, self._host_way(gpu % self._size, direction))
        except InputError:
            return super().host_memory_route(gpu, direction)  # complains of this GPU

    def _move_to_machine(self, gpu: int, route: Spread) -> Spread:
        links = self.machines.machine_links[gpu // self._size, [column for column, _ in route]].tolist()
        return tuple([(link, part) for link, (_, part) in zip(links, route, strict=True)])

    def tray_of_gpu(self, gpu: int) -> int:
        return self.one.tray_of_gpu(gpu % self._size)

    # --- machine 0 ---------------------------------------------------------------------------------------------------

    def _wiring_of_machine_0(self) -> Wiring:
        """Return the wiring of machine 0 and its leaf switches, in which a link's number is its link column."""
        draft = self.draft
        names = dict(zip(draft.nodes[0].tolist(), draft.pattern, strict=True))
        sample: Graph = nx.DiGraph()
        sample.add_nodes_from((name, dict(data)) for name, data in draft.pattern.nodes(data=True))
        index: dict[tuple[str, str], int] = {}
        for (number, own), column in sorted((came, column) for column, came in enumerate(self.numbers.came)):
            block = draft.blocks[number]
            begin, end = (int(block.column_nodes(side, own)[0]) for side in (0, 1))
            for node in (begin, end):
                if node not in names:
                    names[node], data = draft.switches[node]
                    sample.add_node(names[node], **data)
            index[names[begin], names[end]] = column
            sample.add_edge(names[begin], names[end], **block.data[own])
        gpus = tuple(node for node, data in draft.pattern.nodes(data=True) if data["kind"] == "gpu")
        found = Wiring(sample, gpus, [0] * len(gpus), self.routing)
        found.link_index = index
        return found
