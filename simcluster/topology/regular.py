"""Clusters of equal machines on a tree of switches, in closed form: routes of many flows without a graph.

What is otherwise found in a graph follows here from numbers: of machines, their parts and switches.  One machine with
its leaves is a graph, and tells how its GPUs leave and are entered.  The same bits come out; where a cluster is not so
regular, ``None``, and the graph is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import networkx as nx
import numpy as np

from simcluster.base.arrays import Int32s, Ints
from simcluster.base.errors import InputError
from simcluster.base.link_columns import LinkValues, PerLink, TreeFlows
from simcluster.base.texts import natural, naturals
from simcluster.topology.access_paths import Spread, Ways
from simcluster.topology.draft import Draft, check_drawn
from simcluster.topology.hops import Ends, Ground, Hops, Machines
from simcluster.topology.link_ends import LinkEnds, LinkKind
from simcluster.topology.links import Graph, compute_part
from simcluster.topology.numbering import LinkNumbers
from simcluster.topology.paths import Paths, Rows
from simcluster.topology.policies import RoutingSpec
from simcluster.topology.wiring import Wiring, has_storage_nics, host_way, linked_to_each_other, nvswitch_of

PROVED = {
    "routing": frozenset({"shortest", "static", "ecmp", "adaptive"}),
    "link": frozenset({"bandwidth", "latency", "medium", "line_rate", "efficiency", "source"}),
}
"""Policies of routing and what a link may say for itself, of which the closed form gives a graph's routes to the bit
(tests/test_paths.py); with any other the graph is asked."""


class Regular(Wiring):
    """The closed form of one draft, whose graph is made when it is needed."""

    def __init__(self, draft: Draft, numbers: LinkNumbers, routing: RoutingSpec) -> None:
        self.draft, self._numbers, self.routing = draft, numbers, routing
        self.link_capacity, self.link_latency = (
            LinkValues(np.array([data[key] for data in draft.sorts], dtype=np.float64), numbers.sorts)
            for key in ("bandwidth", "latency")
        )
        self.locals = [node for node, data in draft.pattern.nodes(data=True) if data["kind"] == "gpu"]
        self.hosts = np.repeat(np.arange(draft.stamped) // draft.per_host, len(self.locals))
        self._sample, self.sample_index = self._one_machine()
        self.ways = Ways(compute_part(self._sample), self.locals)
        self._switch_of = [nvswitch_of(self._sample, gpu) for gpu in self.locals]

    @classmethod
    def of(cls, draft: Draft, routing: RoutingSpec) -> Regular | None:
        """The closed form, where every GPU has one way out of its machine and back, and all reach each other.

        None where machines are linked to each other directly, too: they must leave by switches; and where routing or
        links say what is not PROVED.
        """
        said = frozenset(key for data in draft.sorts for key in data)
        if routing.kind not in PROVED["routing"] or not said <= PROVED["link"]:
            return None
        numbers = LinkNumbers.of(draft) if draft.stamped else None
        if numbers is None or not nx.is_weakly_connected(compute_part(draft.pattern)):
            return None
        found = cls(draft, numbers, routing)
        ways = [found._way_out(place) for place in range(len(found.locals))]
        if not all(ways):
            return None
        found._settle(ways)
        return found if found._meet() else None

    def _way_out(self, place: int) -> list[str]:
        """Nodes from a GPU of machine 0 to its leaf; none where it can choose, or is entered in another way."""
        near = self.ways.near
        if len(near.exits[place]) != 1 or near.exits[place] != near.entries[place]:
            return []
        gpu, (port,) = self.locals[place], near.exits[place]
        there, back = (self.ways.only_walk_inside(*ends) for ends in ((gpu, port.node), (port.node, gpu)))
        return [] if there is None or back is None or there != back[::-1] else [*there, port.switch]

    def _settle(self, ways: Sequence[Sequence[str]]) -> None:
        """What routes of many flows and turns stand on; of the cluster, and not of who routes first."""
        draft = self.draft
        own = [number for number, (_, data) in draft.switches.items() if "network" not in data]
        named = dict(zip(own, naturals([draft.switches[number][0] for number in own]), strict=True))
        switches = sorted(own, key=named.__getitem__)
        inside = natural(f"{draft.domain}0")[0]
        behind = [named[switch][0] > inside for switch in switches]  # all machines, by name
        position = np.arange(len(switches)) + np.array(behind) * draft.stamped * len(compute_part(draft.pattern))
        numbers = self._numbers
        self.machines = machines = Machines(draft.stamped, len(self.locals), numbers)
        links = [[self.sample_index[hop] for hop in pairwise(way)][::-1] for way in ways]
        self._nics = [way[-2] for way in ways]
        hops = Hops.of(numbers, switches, draft.nodes.size)
        self.ends = Ends.of(machines, links, self._nics, draft, hops, position)
        sorts = [(data["bandwidth"], data["latency"]) for data in draft.sorts]
        number = {sort: place for place, sort in enumerate(dict.fromkeys(sorts))}
        kind = np.array([number[sort] for sort in sorts]).astype(np.min_scalar_type(len(number)))
        self.ground = Ground.of(machines, self.ends, hops, kind)
        self._paths = Paths(self.ground, self.routing, lambda *flow: self.router.spread(*flow), self._walk)

    def _meet(self) -> bool:
        """Do all GPUs reach each other: over one fabric, or handed over by NVLink to a GPU on the other's rail?"""
        parts = self.ends.part[self.ends.leaf].reshape(self.machines.gpus.shape)
        self.one_fabric = self.machines.count == 1 or bool((parts == parts[0, 0]).all())
        mates = self.ways.nvlink_mates(0)
        together = self.routing.pxn is not False and len(mates) == len(self.locals) - 1
        return self.one_fabric or (together and bool((parts == parts[0]).all()))

    # --- the graph ---------------------------------------------------------------------------------------------------

    @cached_property
    def graph(self) -> Graph:  # type: ignore[override]
        """All nodes and links; InputError of more GPUs than a graph is built of."""
        check_drawn(self.draft.gpus)
        return self.draft.graph()

    @cached_property
    def gpus(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the GPUs."""
        return tuple(self.draft.gpu_names())

    @cached_property
    def switches(self) -> tuple[str, ...]:
        """Switches of the collectives' network, by name."""
        return tuple(name for name, data in self.draft.switches.values() if "network" not in data)

    @cached_property
    def storage_nics(self) -> bool:
        """Have machines NICs on a network for storage?"""
        return has_storage_nics(self.draft.pattern)

    @cached_property
    def links(self) -> tuple[tuple[str, str], ...]:  # type: ignore[override]
        """The nodes that each link leads from and to."""
        names, (begin, end) = list(self._names), self.link_ends.nodes(np.arange(len(self.link_capacity)))
        return tuple([(names[a], names[b]) for a, b in zip(begin.tolist(), end.tolist(), strict=True)])

    @cached_property
    def _names(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.draft.names())}

    def has(self, node: str) -> bool:
        """Is there such a node?"""
        return node in self._names

    @cached_property
    def link_ends(self) -> LinkEnds:
        """The nodes that links join."""
        return LinkEnds(self.draft, self._numbers, self.ground.rows)

    def named(self, links: Ints) -> list[tuple[str, str]]:
        """The nodes that some links lead from and to; no graph is made for them."""
        return self.link_ends.named(links)

    def kinds(self, links: Ints) -> tuple[Ints, list[LinkKind]]:
        """The kind of some links; no graph is made for them."""
        return self.link_ends.kinds(links)

    # --- many flows --------------------------------------------------------------------------------------------------

    def rows(self, src: Ints, dst: Ints, number: Ints) -> Rows:
        """The links of all flows, by flow."""
        return self._paths.rows(src, dst, number)

    def loads(self, flows: TreeFlows) -> PerLink | None:
        """``Paths.loads``."""
        return self._paths.loads(flows)

    # --- single GPUs -------------------------------------------------------------------------------------------------

    def uplinks(self, gpu: int) -> tuple[str, ...]:
        """The NIC of a GPU."""
        return (self._named(gpu, self._nics),)

    def nvswitch(self, gpu: int) -> str:
        """The NVSwitch of a GPU; "" for none."""
        return self._named(gpu, self._switch_of)

    def _named(self, gpu: int, of_place: Sequence[str]) -> str:
        """What a GPU's node in machine 0, if there is one, is called in its own."""
        machine, place = divmod(gpu, len(of_place))
        domain, node = self.draft.domain, of_place[place]
        return f"{domain}{machine}{node[len(domain) + 1 :]}" if node else ""

    @cached_property
    def meshed(self) -> bool:
        """Are the GPUs of a machine linked to each other?"""
        return linked_to_each_other(self._sample, self.locals)

    def seats(self, gpus: Ints) -> tuple[Int32s, Int32s]:
        """Numbers of the NVSwitch (0 for none) and of the NICs of GPUs: those of different nodes are different."""
        size = np.int32(len(self.locals))
        machine = gpus.astype(np.int32) // size  # numpy's divmod is ten times as slow
        place = gpus - machine * size
        switch, nic, each = self._seats
        machine *= np.int32(each)
        return np.where(switch[place] > 0, switch[place] + machine, 0), (nic[place] + machine).reshape(-1, 1)

    @cached_property
    def _seats(self) -> tuple[Int32s, Int32s, int]:
        """``seats`` of the GPUs of machine 0, and by how much those of the next are higher."""
        names = ["", *dict.fromkeys([*self._nics, *(node for node in self._switch_of if node)])]
        switches, nics = (
            np.array([names.index(node) for node in nodes], dtype=np.int32) for nodes in (self._switch_of, self._nics)
        )
        return switches, nics, len(names) - 1

    def nvswitch_ways(self, gpu: int) -> tuple[Spread, Spread]:
        """The way of a GPU to its NVSwitch, and back."""
        machine, place = divmod(gpu, len(self.locals))
        up = self.sample_index[self.locals[place], self._switch_of[place]]
        up, down = self.machines.owned[machine, [up, self._numbers.back[up]]].tolist()
        return ((up, 1.0),), ((down, 1.0),)

    def host_way(self, gpu: int, direction: str) -> Spread:
        """Links between a GPU and its host's memory."""
        machine, place = divmod(gpu, len(self.locals))
        try:
            way = self._host_ways[direction][place]
        except InputError:
            return super().host_way(gpu, direction)  # complains of this GPU
        links = self.machines.owned[machine, [column for column, _ in way]].tolist()
        return tuple((link, part) for link, (_, part) in zip(links, way, strict=True))

    @cached_property
    def _host_ways(self) -> dict[str, list[Spread]]:
        """``host_way`` of the GPUs of machine 0, in columns of links."""
        return {direction: [host_way(self._sample, self.sample_index, gpu, direction) for gpu in self.locals]
                for direction in ("d2h", "h2d", "storage", "peers")}  # fmt: skip

    def tray(self, gpu: int) -> int:
        """The tray of a GPU in its rack."""
        return int(self._sample.nodes[self.locals[gpu % len(self.locals)]].get("tray", 0))

    # --- machine 0 ---------------------------------------------------------------------------------------------------

    def _one_machine(self) -> tuple[Graph, dict[tuple[str, str], int]]:
        """Machine 0 with the switches that it is linked to, and the columns of these links."""
        draft = self.draft
        names = dict(zip(draft.nodes[0].tolist(), draft.pattern, strict=True))
        sample: Graph = nx.DiGraph()
        sample.add_nodes_from((name, dict(data)) for name, data in draft.pattern.nodes(data=True))
        index: dict[tuple[str, str], int] = {}
        for (number, own), column in sorted((came, column) for column, came in enumerate(self._numbers.came)):
            block = draft.blocks[number]
            begin, end = (int(block.column(side, own)[0]) for side in (0, 1))
            for node in (begin, end):
                if node not in names:
                    names[node], data = draft.switches[node]
                    sample.add_node(names[node], **data)
            index[names[begin], names[end]] = column
            sample.add_edge(names[begin], names[end], **block.data[own])
        return sample, index

    def _walk(self, src: int, dst: int) -> list[int] | None:
        """Columns of links from GPU to GPU of machine 0, if there is one way, which does not leave it."""
        ways = self.ways
        walk = ways.only_walk_inside(self.locals[src], self.locals[dst]) if self._stays(src, dst) else None
        return None if walk is None else [self.sample_index[hop] for hop in pairwise(walk)]

    def _stays(self, src: int, dst: int) -> bool:
        """Is the way inside the machine as short as any over one leaf, or up from one and down to another?"""
        inside = self.ways.hops_inside(self.locals[dst]).get(self.locals[src])
        leave, enter = self.ways.near.exits[src][0], self.ways.near.entries[dst][0]
        outside = leave.hops + 1 + enter.hops + 1 + (0 if leave.switch == enter.switch else 2)
        return inside is not None and inside <= outside
