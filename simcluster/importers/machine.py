"""Machines as importers find them, and how they are copied and joined by a network into one topology document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from simcluster.base.errors import InputError
from simcluster.importers.generations import SWITCH_LATENCY
from simcluster.importers.graph_document import GraphDocument, Wire
from simcluster.importers.import_parameters import FabricParameters, ImportSpec

MAX_GPUS = 32_768
"""An imported cluster is written out node by node; larger ones want a builder."""

Node = tuple[int, str]
"""A node as (machine, name in it); machine -1 is what several machines share: the NVSwitches of a rack."""


@dataclass(frozen=True, slots=True)
class NicCable:
    """A NIC's cable to the network."""

    nic: Node
    wire: Wire


@dataclass(frozen=True, slots=True)
class System:
    """What one file describes: a machine, or several that NVLink joins.

    ``device`` is the GPU that it speaks of; ``nodes`` maps to kinds, GPUs in the order of their ranks.  Filled by its
    reader.
    """

    device: str | dict[str, object]
    nodes: dict[Node, str] = field(default_factory=dict)
    links: dict[tuple[Node, Node], Wire] = field(default_factory=dict)
    ports: list[NicCable] = field(default_factory=list)

    @property
    def machines(self) -> int:
        """How many machines there are."""
        return 1 + max(machine for machine, _ in self.nodes)

    @property
    def gpus(self) -> list[Node]:
        """The GPUs, in order."""
        return [node for node, kind in self.nodes.items() if kind == "gpu"]

    def link(self, a: Node, b: Node, wire: Wire) -> None:
        """Return a link both ways; of two between the same nodes (PCIe and C2C to one CPU) the faster stays."""
        key = (b, a) if (b, a) in self.links else (a, b)
        have = self.links.get(key)
        if have is None or have.line_rate * have.efficiency < wire.line_rate * wire.efficiency:
            self.links[key] = wire


def join(systems: Sequence[System], spec: ImportSpec, name: str) -> GraphDocument:
    """Return the systems (or ``spec.nodes`` copies of the only one) with their NICs on a fabric.

    Machines are node0, node1, ...; their GPUs gpu0, gpu1, ...  A machine alone has a fabric only if one is asked for.
    InputError when machines that need a network have no NIC, or there are too many GPUs.
    """
    copies = [*systems] if len(systems) > 1 else [systems[0]] * spec.nodes
    gpus = sum(len(system.gpus) for system in copies)
    if gpus > MAX_GPUS:
        raise InputError(f"nodes: {spec.nodes} make {gpus:,} GPUs; at most {MAX_GPUS:,} can be imported")
    devices = list(dict.fromkeys(str(system.device) for system in systems))
    if len(devices) > 1:
        raise InputError(f"the machines have different GPUs ({', '.join(devices)}); a cluster has one: give device")
    document = GraphDocument(name, systems[0].device)
    machines: list[list[tuple[str, Wire]]] = []  # NIC ports of each
    for number, system in enumerate(copies):
        first = len(machines)
        names = {
            (machine, text): f"node{first + machine}.{text}" if machine >= 0 else f"domain{number}.{text}"
            for machine, text in system.nodes
        }
        for node, kind in system.nodes.items():
            document.node(names[node], kind, host=first + node[0] if kind == "gpu" else None)
        for (a, b), wire in system.links.items():
            document.link(names[a], names[b], wire)
        machines += [
            [(names[port.nic], port.wire) for port in system.ports if port.nic[0] == machine]
            for machine in range(system.machines)
        ]
    if len(copies) > 1 or spec.fabric is not None or (len(machines) > 1 and all(machines)):
        _add_fabric(document, machines, spec.fabric or FabricParameters())
    return document


def _add_fabric(document: GraphDocument, machines: list[list[tuple[str, Wire]]], fabric: FabricParameters) -> None:
    without = next((i for i, ports in enumerate(machines) if not ports), None)
    if without is not None:
        raise InputError(
            f"machine {without} has no NIC that could join the network; leave out nodes and fabric, give a file that "
            "lists NICs, or a pattern in nics that keeps one"
        )
    size = fabric.nodes_per_unit or len(machines)
    leaves: dict[tuple[int, int], list[tuple[str, Wire]]] = {}  # (unit, rail)
    for machine, ports in enumerate(machines):
        for rail, port in enumerate(ports):
            leaves.setdefault((machine // size, rail if fabric.rails else 0), []).append(port)
    names = {key: f"unit{key[0]}.leaf{key[1]}" if fabric.rails else f"leaf{key[0]}" for key in sorted(leaves)}
    for name in names.values():
        document.node(name, "switch", tier="leaf")
    for key, name in names.items():
        for nic, wire in leaves[key]:
            document.link(nic, name, wire)
    if len(leaves) > 1:
        _add_spines(document, leaves, names, fabric)


def _add_spines(
    document: GraphDocument,
    leaves: dict[tuple[int, int], list[tuple[str, Wire]]],
    names: dict[tuple[int, int], str],
    fabric: FabricParameters,
) -> None:
    capacity: dict[int, float] = {}  # of the uplinks of one leaf of each rail: its fullest
    for (_, rail), ports in leaves.items():
        down = sum(wire.line_rate for _, wire in ports)
        capacity[rail] = max(capacity.get(rail, 0.0), down / fabric.oversubscription)
    fastest = max((wire for ports in leaves.values() for _, wire in ports), key=lambda wire: wire.line_rate)
    count = max(1, int(max(capacity.values()) / fastest.line_rate * (1 + 1e-12)))  # 1e-12: 3 x 0.1 is still 3 links
    for spine in range(count):
        document.node(f"spine{spine}", "switch", tier="spine")
    latency = fabric.leaf_to_spine_latency
    note = "rate from the NICs below and the oversubscription"
    note += "; 0.6 us for each further switch: assumed" if latency == SWITCH_LATENCY else ""
    for (_, rail), name in names.items():
        wire = Wire(capacity[rail] / count, fastest.efficiency, latency, fastest.medium, note)
        for spine in range(count):
            document.link(name, f"spine{spine}", wire)
