"""Routes of flows: fewest hops, and among equally short paths the choice of the cluster's routing policy.

A route stays in the machine if that is no longer, or leaves it once, crosses the fabric, and enters the destination's
machine once: GPUs and NICs never forward inside a machine, and no third machine does.

Both ends use the NICs nearest to them (NCCL's rule; another NIC of the machine, across a host bridge, is taken only
where those do not connect). Where the nearest NICs lie on networks that never meet, as the rails of a rail-only fabric,
the sender first sends by NVLink to a GPU of its machine whose NIC reaches the destination (NCCL's PXN); with
``pxn: true`` it does so wherever that GPU is fewer switches away from the destination.

Ties. Of k equally near NICs flow number n takes NIC (i + n) mod k at both ends, i being the GPU's place in its machine
(NCCL's rule: GPU index + channel). At a switch the policy (``policies``) picks one of the candidates, or splits evenly
between all; one that splits does so between the NICs, too. The default is static by destination, d mod k, where d
numbers the NICs in tree order, leaf by leaf. With one NIC a GPU that is the GPU index itself wherever GPUs are numbered
leaf by leaf; on a rail-optimised fabric it is not, and the plain index would send a whole rail's traffic (all d equal
mod 8) over an eighth of the spines. Inside a machine, which no switch has a say in, d is the GPU index, and of equally
short paths the one with the fastest next link is taken: NVSwitch before a PCIe switch.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import networkx as nx

from simcluster.base.errors import InputError
from simcluster.topology.access_paths import (
    WHOLE,
    EntrySignature,
    FabricPort,
    GpuPorts,
    ShortestPaths,
    Spread,
    entry_ports_signature,
    split_evenly,
)
from simcluster.topology.policies import STATIC, Pick, RoutingInputs, RoutingSpec


class Router:
    """Router of single flows between the GPUs of a cluster graph; routes are cached."""

    def __init__(
        self,
        graph: nx.DiGraph[str],
        gpus: Sequence[str],
        link_index: Mapping[tuple[str, str], int],
        policy: RoutingSpec = STATIC,
    ) -> None:
        self.gpus = tuple(gpus)
        self.link_index = link_index
        self._policy = policy
        self.ways = ways = ShortestPaths(graph, gpus)
        self._place = [int(graph.nodes[gpu].get("local", number)) for number, gpu in enumerate(gpus)]
        self._nics = math.lcm(*(max(1, len({port.node for port in ports})) for ports in ways.near.exits))
        self._outsides: dict[tuple[int, EntrySignature, bool], tuple[int | None, list[FabricPort]]] = {}
        self._gates: dict[tuple[str, int, bool], list[tuple[str, EntrySignature]]] = {}
        self._fabrics: dict[tuple[str, int, int], list[str]] = {}
        self._paths: dict[tuple[int, int, int], tuple[int, ...]] = {}
        self._sprays: dict[object, tuple[tuple[tuple[int, int], ...], tuple[tuple[str, int], ...]]] = {}

    # --- what others ask ---------------------------------------------------------------------------------------------

    def route(self, src: int, dst: int) -> tuple[int, ...]:
        """Return the links of one path between two GPUs; raise InputError if there is none."""
        flow = RoutingInputs(src, dst, self._entry_nic_index(src, dst, 0), 0)
        picks = self._policy.path_choices(flow) or STATIC.path_choices(flow)
        return self._links_of_path(flow, picks[0], 0)

    def spread_route(self, src: int, dst: int, number: int = 0) -> Spread:
        """Return (link, fraction of the bytes) for each link that flow ``number`` between two GPUs uses.

        ``number`` is one of NCCL's channels: where a GPU is near several NICs it selects one, and flows of other NICs
        may take another path.
        """
        entry = self._entry_nic_index(src, dst, number)
        flow = RoutingInputs(src, dst, entry, number if self._policy.depends_on_flow else 0)
        picks = self._policy.path_choices(flow)
        if len(picks) == 1:
            return tuple([(link, 1.0) for link in self._links_of_path(flow, picks[0], number)])
        units: dict[int, int] = defaultdict(int)
        if picks:
            course = self._exit_gpu_and_ports(src, dst)
            for pick, part in zip(picks, split_evenly(WHOLE, len(picks)), strict=True):
                for link in self._links_along_nodes(self._nodes_of_path(src, dst, course, pick, number)):
                    units[link] += part
        else:
            self._add_sprayed_bytes(src, dst, units)
        return tuple([(link, part / WHOLE) for link, part in units.items()])

    def exit_nics(self, gpu: int) -> tuple[str, ...]:
        """Return the NIC (or GPU) through which each flow 0, 1, ... from a GPU leaves the node in the fewest hops."""
        nodes = list(dict.fromkeys(port.node for port in self.ways.near.exits[gpu]))
        turn = self._place[gpu] % len(nodes) if nodes else 0
        return (*nodes[turn:], *nodes[:turn])

    def check_reachable(self) -> None:
        """Raise InputError, naming two GPUs, if some GPU cannot reach another.

        Quick when every GPU has ports and the switches reach each other; else one pair of each kind of place is tried,
        and of those without a path but inside the machine every pair.
        """
        ways = self.ways
        near, parts = ways.near, ways.fabric_part_numbers()
        if all(near.exits) and all(near.entries) and len(set(parts.values())) == 1:
            return
        by_place: dict[tuple[tuple[int, ...], ...], list[int]] = defaultdict(list)
        for gpu in range(len(self.gpus)):
            mates = [port for mate in ways.nvlink_peers(gpu) for port in near.exits[mate]]
            ports = (near.exits[gpu], near.entries[gpu], ways.all_ports.exits[gpu], ways.all_ports.entries[gpu], mates)
            by_place[tuple(tuple(sorted({parts[port.switch] for port in some})) for some in ports)].append(gpu)
        for sources, targets in itertools.product(by_place.values(), repeat=2):
            if not self._has_fabric_path(sources[0], targets[0]):
                for src, dst in itertools.product(sources, targets):
                    self._exit_gpu_and_ports(src, dst)

    # --- where a route leaves the machine ----------------------------------------------------------------------------

    def _exit_gpu_and_ports(self, src: int, dst: int) -> tuple[int, GpuPorts] | None:
        """Return the GPU whose ports a path uses to leave the node, and all GPUs' ports; None for a path inside."""
        ways, near, pxn = self.ways, self.ways.near, self._policy.pxn
        inside = ways.hops_within_machine(self.gpus[dst]).get(self.gpus[src])
        outside = self._hops_over_fabric(src, dst, near)[0]
        if inside is not None and (outside is None or inside <= outside):
            return None
        if pxn or (outside is None and pxn is None):
            hops, relay = self._nearest_relay(src, dst)
            if hops is not None and (outside is None or hops < outside):
                return relay, near
        if outside is not None:
            return src, near
        if self._hops_over_fabric(src, dst, ways.all_ports)[0] is not None:
            return src, ways.all_ports
        raise InputError(self._describe_missing_path(src, dst))

    def _hops_over_fabric(self, src: int, dst: int, gpu_ports: GpuPorts) -> tuple[int | None, list[FabricPort]]:
        """Return the hops of the shortest path over switches (None: no path), and the exit ports of such paths."""
        key = src, gpu_ports.signatures[dst], gpu_ports is self.ways.near
        if key not in self._outsides:
            distance = self.ways.hops_by_switch(gpu_ports.signatures[dst])
            ports = [port for port in gpu_ports.exits[src] if port.switch in distance]
            costs = [port.hops + 1 + distance[port.switch] for port in ports]
            best = min(costs, default=None)
            self._outsides[key] = best, [port for port, cost in zip(ports, costs, strict=True) if cost == best]
        return self._outsides[key]

    def _nearest_relay(self, src: int, dst: int) -> tuple[int | None, int]:
        """Return the hops to ``dst`` from the nearest NVLink peer of ``src`` (None: no path), and that peer."""
        near = self.ways.near
        hops = {mate: self._hops_over_fabric(mate, dst, near)[0] for mate in self.ways.nvlink_peers(src)}
        best = min((cost for cost in hops.values() if cost is not None), default=None)
        nearest = [mate for mate, cost in hops.items() if cost == best and cost is not None]
        return best, nearest[dst % len(nearest)] if nearest else src

    def _has_fabric_path(self, src: int, dst: int) -> bool:
        ways = (self._hops_over_fabric(src, dst, doors)[0] for doors in (self.ways.near, self.ways.all_ports))
        relays = self._policy.pxn is not False and self._nearest_relay(src, dst)[0] is not None
        return relays or any(hops is not None for hops in ways)

    def _describe_missing_path(self, src: int, dst: int) -> str:
        what = f"GPU {self.gpus[src]} cannot reach GPU {self.gpus[dst]}"
        hops, relay = self._nearest_relay(src, dst)
        if hops is not None:
            return (
                f"{what}: their NICs are on rails that never meet, and routing.pxn is false; set routing.pxn to true, "
                f"so that this traffic goes over NVLink to the GPU on the other rail ({self.gpus[relay]})"
            )
        return (
            f"{what}; every GPU must reach every other one through links and switches "
            "(GPUs, NICs and nodes do not forward traffic): add a switch between NICs"
        )

    # --- one path ----------------------------------------------------------------------------------------------------

    def _links_of_path(self, flow: RoutingInputs, pick: Pick, number: int) -> tuple[int, ...]:
        key = (flow.src, flow.dst, number if self._policy.depends_on_flow else number % self._nics)
        path = self._paths.get(key)
        if path is None:
            nodes = self._nodes_of_path(flow.src, flow.dst, self._exit_gpu_and_ports(flow.src, flow.dst), pick, number)
            path = self._paths[key] = tuple(self._links_along_nodes(nodes))
        return path

    def _nodes_of_path(self, src: int, dst: int, via: tuple[int, GpuPorts] | None, pick: Pick, flow: int) -> list[str]:
        start, end, inside = self.gpus[src], self.gpus[dst], self.ways.path_within_machine
        if via is None:
            return inside(start, end, dst)
        leaving, doors = via
        ports = self._exit_ports(leaving, dst, doors, flow)
        port = ports[pick(self.ways.position[self.gpus[leaving]], len(ports))]
        across = self._path_over_fabric(port.switch, dst, doors, pick, flow)
        return self._path_to_exit_port(src, leaving, port, dst) + across[:-1] + inside(across[-1], end, dst)

    def _path_to_exit_port(self, src: int, leaving: int, port: FabricPort, dst: int) -> list[str]:
        way = self.ways.path_within_machine(self.gpus[leaving], port.node, dst)
        if leaving == src:
            return way
        return self.ways.path_within_machine(self.gpus[src], self.gpus[leaving], leaving)[:-1] + way

    def _path_over_fabric(self, switch: str, dst: int, gpu_ports: GpuPorts, pick: Pick, number: int) -> list[str]:
        """Return the path over switches from ``switch`` to the NIC (or GPU) where it enters the destination node."""
        key = (switch, dst, number % self._nics)
        settled = not self._policy.depends_on_flow and gpu_ports is self.ways.near  # then the source is irrelevant
        if settled and key in self._fabrics:
            return self._fabrics[key]
        ways, entry, signature = self.ways, "", gpu_ports.signatures[dst]
        if len(gpu_ports.entries[dst]) > 1:
            gates = self._nearest_entry_nics(switch, dst, gpu_ports)
            entry, signature = gates[(self._place[dst] + number) % len(gates)]
        distance = ways.hops_by_switch(signature)
        path = [switch]
        while True:
            here = path[-1]
            into = [
                port.node
                for port in gpu_ports.entries[dst]
                if port.switch == here and port.hops + 1 == distance[here] and entry in ("", port.node)
            ]
            onward = ways.next_switches(signature, here)
            candidates = ways.sort_by_name(into + onward) if into and onward else into or onward
            path.append(candidates[pick(ways.position[here], len(candidates))])
            if path[-1] not in ways.switches:
                break
        if settled:
            self._fabrics[key] = path
        return path

    def _exit_ports(self, leaving: int, dst: int, gpu_ports: GpuPorts, number: int) -> list[FabricPort]:
        """Return the ports of the NIC (or GPU) through which a flow leaves its node."""
        ports = self._hops_over_fabric(leaving, dst, gpu_ports)[1]
        if len(ports) == 1:
            return ports
        nodes = list(dict.fromkeys(port.node for port in ports))
        node = nodes[(self._place[leaving] + number) % len(nodes)]
        return [port for port in ports if port.node == node]

    def _entry_nic_index(self, src: int, dst: int, number: int) -> int:
        """Return the index (counted leaf by leaf) of the NIC or GPU through which a flow enters the other node."""
        entries = self.ways.near.entries[dst]
        if len(entries) < 2:
            return self.ways.tree_order[entries[0].node] if entries else 0
        course = self._exit_gpu_and_ports(src, dst)
        if course is None:
            return 0
        port = self._exit_ports(course[0], dst, course[1], number)[0]
        gates = self._nearest_entry_nics(port.switch, dst, course[1])
        return self.ways.tree_order.get(gates[(self._place[dst] + number) % len(gates)][0], 0)

    def _nearest_entry_nics(self, switch: str, dst: int, gpu_ports: GpuPorts) -> list[tuple[str, EntrySignature]]:
        """Return the NICs (or GPU) of ``dst`` nearest to a switch, with the signatures of their ports."""
        key = switch, dst, gpu_ports is self.ways.near
        if key in self._gates:
            return self._gates[key]
        of_node: dict[str, list[FabricPort]] = {}
        for port in gpu_ports.entries[dst]:
            of_node.setdefault(port.node, []).append(port)
        best = self.ways.hops_by_switch(gpu_ports.signatures[dst])[switch]
        gates = [(node, entry_ports_signature(ports)) for node, ports in of_node.items()]
        self._gates[key] = [gate for gate in gates if self.ways.hops_by_switch(gate[1]).get(switch) == best]
        return self._gates[key]

    def _links_along_nodes(self, nodes: Sequence[str]) -> list[int]:
        index = self.link_index
        return [index[hop] for hop in itertools.pairwise(nodes)]

    # --- all paths ---------------------------------------------------------------------------------------------------

    def _add_sprayed_bytes(self, src: int, dst: int, link_loads: dict[int, int]) -> None:
        """Split a flow evenly over all next hops at each switch, and add its load on every link to ``link_loads``."""
        course, ways, start, end = self._exit_gpu_and_ports(src, dst), self.ways, self.gpus[src], self.gpus[dst]
        if course is None:
            link_loads.update(dict.fromkeys(self._links_along_nodes(ways.path_within_machine(start, end, dst)), WHOLE))
            return
        leaving, doors = course
        starts: dict[str, int] = defaultdict(int)
        ports = self._hops_over_fabric(leaving, dst, doors)[1]
        for port, part in zip(ports, split_evenly(WHOLE, len(ports)), strict=True):
            starts[port.switch] += part
            for link in self._links_along_nodes([*self._path_to_exit_port(src, leaving, port, dst), port.switch]):
                link_loads[link] += part
        distance = ways.hops_by_switch(doors.signatures[dst])
        into: dict[str, list[str]] = defaultdict(list)
        for port in doors.entries[dst]:
            if port.hops + 1 == distance[port.switch]:
                into[port.switch].append(port.node)
        across, arrived = self._spray_over_fabric(starts, into, doors.signatures[dst])
        for link, part in across:
            link_loads[link] += part
        for switch, whole in arrived:
            for node, part in zip(into[switch], split_evenly(whole, len(into[switch])), strict=True):
                for link in self._links_along_nodes([switch, *ways.path_within_machine(node, end, dst)]):
                    link_loads[link] += part

    def _spray_over_fabric(
        self, starts: Mapping[str, int], into: Mapping[str, Sequence[str]], signature: EntrySignature
    ) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[str, int], ...]]:
        """Return the load of each link between switches, and the load that arrives at each last switch.

        The same for all GPUs with equal links to the same switches, so computed once for them.
        """
        doors = tuple((switch, len(nodes)) for switch, nodes in into.items())
        key = (tuple(starts.items()), doors, signature)
        if key in self._sprays:
            return self._sprays[key]
        distance = self.ways.hops_by_switch(signature)
        levels: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for switch, part in starts.items():
            levels[distance[switch]][switch] = part
        across: list[tuple[int, int]] = []
        arrived: list[tuple[str, int]] = []
        for level in range(max(levels), 0, -1):
            for switch, whole in levels[level].items():
                ends, onward = len(into.get(switch, ())), self.ways.next_switches(signature, switch)
                parts = split_evenly(whole, ends + len(onward))
                if ends:
                    arrived.append((switch, sum(parts[:ends])))
                for node, part in zip(onward, parts[ends:], strict=True):
                    across.append((self.link_index[switch, node], part))
                    levels[level - 1][node] += part
        self._sprays[key] = tuple(across), tuple(arrived)
        return self._sprays[key]
