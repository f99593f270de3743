"""Cluster imported from other tools' files, as a topology document of ``kind: graph``.

In a scenario ``cluster: {topology: host.xml, nodes: 16, device: h200}``; as a separate file ``kind: import`` with
``files``, which ``simcluster topology`` describes like any other. What the files describe becomes a ``kind: graph``
document: nodes are copied and joined by a network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from simcluster.base.errors import InputError
from simcluster.base.units import BytesPerSecond, Seconds, write_quantity
from simcluster.documents.spec import ONE_OR_MORE, Count, Spec
from simcluster.topology.links import Fraction, Name

NamePatterns = Annotated[tuple[Name, ...], ONE_OR_MORE]
"""One text or a list of them."""


@dataclass(frozen=True, slots=True)
class Wire:
    """Rate (B/s), payload efficiency, latency (s) and medium of a link in one direction, with their source."""

    line_rate: float
    efficiency: float
    latency: float
    medium: str
    source: str

    def multiply(self, count: int) -> Wire:
        """Return one link that represents ``count`` parallel links."""
        return replace(self, line_rate=self.line_rate * count)

    def topology_fields(self) -> dict[str, Any]:
        """Return the link's fields as a topology file writes them, with full floating-point precision."""
        medium = {"medium": self.medium} if self.medium else {}  # default: the usual medium between such nodes
        return {
            "line_rate": write_quantity(self.line_rate, "B/s"), "efficiency": self.efficiency,
            "latency": write_quantity(self.latency, "s"), "source": self.source, **medium,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class GraphDocument:
    """Topology document (``kind: graph``) under construction, with nodes and edges in the order added."""

    name: str
    device: str | dict[str, object]
    nodes: list[dict[str, Any]] = field(default_factory=list)
    edges: list[dict[str, Any]] = field(default_factory=list)

    def add_node(self, name: str, kind: str, **more: int | str | None) -> None:
        """Add a node; a GPU may have a ``host``, a switch a ``tier``, a NIC or switch a ``network``."""
        known = {key: value for key, value in more.items() if value is not None}
        self.nodes.append({"name": name, "kind": kind, **known})

    def add_link(self, a: str, b: str, wire: Wire, **more: bool) -> None:
        """Add a link between ``a`` and ``b`` in both directions, or from ``a`` to ``b`` with ``one_way=True``."""
        self.edges.append({"between": [a, b], **more, **wire.topology_fields()})

    def to_dict(self) -> dict[str, Any]:
        """Return the topology document as the mapping that a ``kind: graph`` file holds."""
        return {"kind": "graph", "name": self.name, "device": self.device, "nodes": self.nodes, "edges": self.edges}


class LinkOverrides(Spec):
    """Rate, efficiency and latency of a link that the user sets to override imported values."""

    line_rate: BytesPerSecond | None = None
    efficiency: Fraction | None = None
    latency: Seconds | None = None

    def apply_to(self, wire: Wire) -> Wire:
        """Return the link with the user's rate, efficiency and latency instead of the imported ones."""
        if self == LinkOverrides():
            return wire
        given = [f"{name.replace('_', ' ')} set by the user" for name in type(self).model_fields if getattr(self, name)]
        own = self.model_dump(exclude_none=True)
        return replace(wire, **own, source="; ".join([*given, wire.source]))


class FabricParameters(Spec):
    """Parameters of the leaf-spine network that connects imported nodes.

    ``rails``: NIC i of every node of a unit is on leaf i (rail-optimised); else all NICs of a unit are on one leaf.
    ``nodes_per_unit`` defaults to all nodes. A leaf's uplinks together carry the line rate of its NICs (of the fullest
    unit's) divided by ``oversubscription``; there are as many spines as fastest NICs fit in that.
    """

    rails: Annotated[bool, Field(strict=True)] = True
    nodes_per_unit: Count | None = None
    oversubscription: Annotated[float, Field(gt=0)] = 1.0
    leaf_to_spine_latency: Seconds = 0.6e-6


class ImportSpec(Spec):
    """Parameters of a cluster that is imported from other tools' files.

    ``nodes`` identical copies of the one node that a file describes, or several ``files`` with one node each, are
    joined by ``fabric``. ``nics`` and ``hosts`` keep only what matches one of these patterns (mlx5_*).
    ``nvlinks_per_gpu`` (0: none), ``nvswitch`` and ``gpus_per_nic`` state what a format leaves open; ``nvlink`` has the
    figures of a single NVLink, ``pcie`` of a PCIe link, ``socket`` between NUMA nodes, ``nic`` of a NIC's port.
    """

    kind: Literal["import"]
    files: Annotated[NamePatterns, Field(min_length=1, max_length=4096)]
    name: Name | None = None
    device: Name | dict[str, object] | None = None
    nodes: Count = 1
    fabric: FabricParameters | None = None
    nics: NamePatterns = ()
    hosts: NamePatterns = ()
    gpus_per_nic: Count = 1
    nvlinks_per_gpu: Annotated[int, Field(strict=True, ge=0, le=72)] | None = None
    nvswitch: Annotated[bool, Field(strict=True)] | None = None
    nvlink: LinkOverrides = LinkOverrides()
    pcie: LinkOverrides = LinkOverrides()
    socket: LinkOverrides = LinkOverrides()
    nic: LinkOverrides = LinkOverrides()

    @model_validator(mode="after")
    def _check_one_file_is_copied(self) -> Self:
        if len(self.files) > 1 and self.nodes > 1:
            raise InputError(
                f"nodes is {self.nodes} and there are {len(self.files)} files; give one file and the number of equal "
                "nodes, or one file per node without nodes"
            )
        return self

    def check_parameters(self, form: str, known: tuple[str, ...]) -> None:
        """Raise InputError for an import parameter that this file format does not use."""
        always = ("kind", "files", "name", "device")
        for key in ImportSpec.model_fields:  # a fixed order, so that the message does not depend on a set
            if key in self.model_fields_set and key not in always and key not in known:
                raise InputError(f"{key} does not apply to {form}; its parameters are device, name, {', '.join(known)}")


def matches_patterns(name: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a NIC or host name matches one of the patterns; True if there are no patterns."""
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


# --- nodes ------------------------------------------------------------------------------------------------------------

SWITCH_LATENCY = 0.6e-6  # assumed, inside the 0.3 to 1 us usual for a switch and its cables
MAX_GPUS = 32_768
"""Imported clusters are written node by node; use a builder for larger ones."""

Node = tuple[int, str]
"""A device as (node of GPUs, name in it); node -1 holds what several share: the NVSwitches of a rack."""


@dataclass(frozen=True, slots=True)
class NicCable:
    """A NIC and its cable to the network."""

    nic: Node
    wire: Wire


@dataclass(frozen=True, slots=True)
class ImportedNodes:
    """Nodes and links that one file describes (one compute node, or several joined by NVLink).

    ``device`` is the GPU that the file names; ``nodes`` maps to kinds, with GPUs in rank order.
    """

    device: str | dict[str, object]
    nodes: dict[Node, str] = field(default_factory=dict)
    links: dict[tuple[Node, Node], Wire] = field(default_factory=dict)
    ports: list[NicCable] = field(default_factory=list)

    @property
    def node_count(self) -> int:
        """Number of compute nodes."""
        return 1 + max(machine for machine, _ in self.nodes)

    @property
    def gpus(self) -> list[Node]:
        """Graph nodes of the GPUs, in rank order."""
        return [node for node, kind in self.nodes.items() if kind == "gpu"]

    def add_link(self, a: Node, b: Node, wire: Wire) -> None:
        """Add a link in both directions, keeping the faster one of parallel links."""
        key = (b, a) if (b, a) in self.links else (a, b)
        have = self.links.get(key)
        if have is None or have.line_rate * have.efficiency < wire.line_rate * wire.efficiency:
            self.links[key] = wire


def join_imported_nodes(systems: Sequence[ImportedNodes], spec: ImportSpec, name: str) -> GraphDocument:
    """Return the topology document of imported nodes, or of ``spec.nodes`` copies, joined by a fabric.

    Nodes are called node0, node1, ...; their GPUs gpu0, gpu1, ... A single node gets a fabric only on request. Raises
    InputError if nodes that need a network have no NIC, or if there are too many GPUs.
    """
    copies = [*systems] if len(systems) > 1 else [systems[0]] * spec.nodes
    gpus = sum(len(system.gpus) for system in copies)
    if gpus > MAX_GPUS:
        raise InputError(f"nodes: {spec.nodes} nodes have {gpus:,} GPUs; at most {MAX_GPUS:,} can be imported")
    devices = list(dict.fromkeys(str(system.device) for system in systems))
    if len(devices) > 1:
        raise InputError(f"the nodes have different GPUs ({', '.join(devices)}); a cluster has one kind: set device")
    document = GraphDocument(name, systems[0].device)
    machines: list[list[tuple[str, Wire]]] = []  # NIC ports per node
    for number, system in enumerate(copies):
        first = len(machines)
        names = {
            (machine, text): f"node{first + machine}.{text}" if machine >= 0 else f"domain{number}.{text}"
            for machine, text in system.nodes
        }
        for node, kind in system.nodes.items():
            document.add_node(names[node], kind, host=first + node[0] if kind == "gpu" else None)
        for (a, b), wire in system.links.items():
            document.add_link(names[a], names[b], wire)
        machines += [
            [(names[port.nic], port.wire) for port in system.ports if port.nic[0] == machine]
            for machine in range(system.node_count)
        ]
    if len(copies) > 1 or spec.fabric is not None or (len(machines) > 1 and all(machines)):
        _add_fabric(document, machines, spec.fabric or FabricParameters())
    return document


def _add_fabric(document: GraphDocument, machines: list[list[tuple[str, Wire]]], fabric: FabricParameters) -> None:
    without = next((i for i, ports in enumerate(machines) if not ports), None)
    if without is not None:
        raise InputError(
            f"node {without} has no NIC for the network; give a file that lists NICs, or a pattern in nics that "
            "matches one (without nodes and fabric there is no network)"
        )
    size = fabric.nodes_per_unit or len(machines)
    leaves: dict[tuple[int, int], list[tuple[str, Wire]]] = {}  # (unit, rail)
    for machine, ports in enumerate(machines):
        for rail, port in enumerate(ports):
            leaves.setdefault((machine // size, rail if fabric.rails else 0), []).append(port)
    names = {key: f"unit{key[0]}.leaf{key[1]}" if fabric.rails else f"leaf{key[0]}" for key in sorted(leaves)}
    for name in names.values():
        document.add_node(name, "switch", tier="leaf")
    for key, name in names.items():
        for nic, wire in leaves[key]:
            document.add_link(nic, name, wire)
    if len(leaves) > 1:
        _add_spines(document, leaves, names, fabric)


def _add_spines(
    document: GraphDocument, leaves: dict[tuple[int, int], list[tuple[str, Wire]]], names: dict[tuple[int, int], str],
    fabric: FabricParameters,
) -> None:  # fmt: skip
    capacity: dict[int, float] = {}  # uplinks of the fullest leaf of each rail
    for (_, rail), ports in leaves.items():
        down = sum(wire.line_rate for _, wire in ports)
        capacity[rail] = max(capacity.get(rail, 0.0), down / fabric.oversubscription)
    fastest = max((wire for ports in leaves.values() for _, wire in ports), key=lambda wire: wire.line_rate)
    count = max(1, int(max(capacity.values()) / fastest.line_rate * (1 + 1e-12)))  # 1e-12: 3 x 0.1 is still 3 links
    for spine in range(count):
        document.add_node(f"spine{spine}", "switch", tier="spine")
    latency = fabric.leaf_to_spine_latency
    note = "rate from the NICs below and oversubscription"
    note += "; 0.6 us per further switch: assumed" if latency == SWITCH_LATENCY else ""
    for (_, rail), name in names.items():
        wire = Wire(capacity[rail] / count, fastest.efficiency, latency, fastest.medium, note)
        for spine in range(count):
            document.add_link(name, f"spine{spine}", wire)
