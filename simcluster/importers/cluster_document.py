"""Construction of a ``kind: graph`` topology document from the cluster files of other tools.

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
from simcluster.base.units import BytesPerSecond, Seconds, format_exact_quantity
from simcluster.documents.base_spec import ONE_OR_MORE, Count, Spec
from simcluster.topology.links import Fraction, Name

NamePatterns = Annotated[tuple[Name, ...], ONE_OR_MORE]
"""One name pattern or a list of name patterns."""


@dataclass(frozen=True, slots=True)
class ImportedLink:
    """One direction of a link: rate (B/s), payload efficiency, latency (s), medium, and source of these numbers."""

    line_rate: float
    efficiency: float
    latency: float
    medium: str
    source: str

    def multiply(self, count: int) -> ImportedLink:
        """Return ``count`` parallel links as a single link with their total rate."""
        return replace(self, line_rate=self.line_rate * count)

    def topology_fields(self) -> dict[str, Any]:
        """Return the link's fields for a topology file, with numbers in full precision."""
        medium = {"medium": self.medium} if self.medium else {}  # default: the usual medium between such nodes
        return {
            "line_rate": format_exact_quantity(self.line_rate, "B/s"), "efficiency": self.efficiency,
            "latency": format_exact_quantity(self.latency, "s"), "source": self.source, **medium,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class GraphDocument:
    """Topology document (``kind: graph``) under construction, with nodes and edges in the order added."""

    name: str
    device: str | dict[str, object]
    nodes: list[dict[str, Any]] = field(default_factory=list)
    edges: list[dict[str, Any]] = field(default_factory=list)

    def add_node(self, name: str, kind: str, **attributes: int | str | None) -> None:
        """Add a node; a GPU may have a ``host``, a switch a ``tier``, a NIC or switch a ``network``."""
        known = {key: value for key, value in attributes.items() if value is not None}
        self.nodes.append({"name": name, "kind": kind, **known})

    def add_link(self, a: str, b: str, link: ImportedLink, **flags: bool) -> None:
        """Add a link from ``a`` to ``b`` and, unless ``one_way=True``, another from ``b`` to ``a``."""
        self.edges.append({"between": [a, b], **flags, **link.topology_fields()})

    def to_dict(self) -> dict[str, Any]:
        """Return the topology document as the mapping that a ``kind: graph`` file holds."""
        return {"kind": "graph", "name": self.name, "device": self.device, "nodes": self.nodes, "edges": self.edges}


class LinkOverrides(Spec):
    """Rate, efficiency and latency of a link that the user sets to override imported values."""

    line_rate: BytesPerSecond | None = None
    efficiency: Fraction | None = None
    latency: Seconds | None = None

    def apply_to(self, link: ImportedLink) -> ImportedLink:
        """Return the link with the user's rate, efficiency and latency instead of the imported ones."""
        if self == LinkOverrides():
            return link
        given = [f"{name.replace('_', ' ')} set by the user" for name in type(self).model_fields if getattr(self, name)]
        own = self.model_dump(exclude_none=True)
        return replace(link, **own, source="; ".join([*given, link.source]))


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
    """User's parameters for the import of a cluster from files of other tools.

    ``nodes`` identical copies of the one node that a file describes, or several ``files`` with one node each, are
    joined by ``fabric``. ``nics`` and ``hosts`` are patterns (mlx5_*) that select NICs and hosts.
    ``nvlinks_per_gpu`` (0: none), ``nvswitch`` and ``gpus_per_nic`` state what a format leaves open; ``nvlink``
    overrides a single NVLink, ``pcie`` a PCIe link, ``socket`` the link between NUMA nodes, ``nic`` a NIC's port.
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
    def _check_nodes_and_files(self) -> Self:
        if len(self.files) > 1 and self.nodes > 1:
            raise InputError(
                f"'nodes: {self.nodes}' and {len(self.files)} files exclude each other; give one file and a number of "
                "equal nodes, or one file per node without the key 'nodes'"
            )
        return self

    def check_parameters(self, kind: str, known: tuple[str, ...]) -> None:
        """Raise InputError for an import parameter that does not apply to this file format."""
        always = ("kind", "files", "name", "device")
        for key in ImportSpec.model_fields:  # a fixed order, so that the message does not depend on a set
            if key in self.model_fields_set and key not in always and key not in known:
                raise InputError(f"{key} does not apply to {kind}; its parameters are device, name, {', '.join(known)}")


def matches_any_pattern(name: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a NIC or host name matches one of the patterns; True if there are no patterns."""
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


# --- nodes ------------------------------------------------------------------------------------------------------------

SWITCH_LATENCY = 0.6e-6  # assumed, inside the 0.3 to 1 us usual for a switch and its cables
_NicPorts = list[tuple[str, ImportedLink]]  # name and link of each NIC port of a node
MAX_GPUS = 32_768
"""Imported clusters are written node by node; use a builder for larger ones."""

DeviceKey = tuple[int, str]
"""A device as (node number, name in the node); node -1 holds devices that nodes share, such as a rack's NVSwitches."""


@dataclass(frozen=True, slots=True)
class NicCable:
    """A NIC and the properties of its cable to the network."""

    nic: DeviceKey
    wire: ImportedLink


@dataclass(frozen=True, slots=True)
class ImportedNodes:
    """Devices and links that one file describes: a compute node, or several nodes joined by NVLink.

    ``device`` is the GPU that the file names; ``nodes`` maps to kinds, with GPUs in rank order.
    """

    device: str | dict[str, object]
    nodes: dict[DeviceKey, str] = field(default_factory=dict)
    links: dict[tuple[DeviceKey, DeviceKey], ImportedLink] = field(default_factory=dict)
    ports: list[NicCable] = field(default_factory=list)

    @property
    def node_count(self) -> int:
        """Number of compute nodes."""
        return 1 + max(machine for machine, _ in self.nodes)

    @property
    def gpus(self) -> list[DeviceKey]:
        """Keys of the GPUs, in rank order."""
        return [node for node, kind in self.nodes.items() if kind == "gpu"]

    def add_link(self, a: DeviceKey, b: DeviceKey, link: ImportedLink) -> None:
        """Add a link in both directions; if the two devices already have one, keep the faster link."""
        key = (b, a) if (b, a) in self.links else (a, b)
        have = self.links.get(key)
        if have is None or have.line_rate * have.efficiency < link.line_rate * link.efficiency:
            self.links[key] = link


def join_imported_nodes(systems: Sequence[ImportedNodes], spec: ImportSpec, name: str) -> GraphDocument:
    """Join imported nodes (or ``spec.nodes`` copies of one) by a leaf-spine network; return the topology document.

    Nodes are called node0, node1, ...; their GPUs gpu0, gpu1, ... A single node gets a fabric only on request. Raises
    InputError if nodes that need a network have no NIC, or if there are too many GPUs.
    """
    copies = [*systems] if len(systems) > 1 else [systems[0]] * spec.nodes
    gpus = sum(len(system.gpus) for system in copies)
    if gpus > MAX_GPUS:
        raise InputError(f"nodes: {spec.nodes} nodes have {gpus:,} GPUs; at most {MAX_GPUS:,} can be imported")
    devices = list(dict.fromkeys(str(system.device) for system in systems))
    if len(devices) > 1:
        raise InputError(f"the GPUs differ ({', '.join(devices)}); a cluster has one GPU model: set device")
    document = GraphDocument(name, systems[0].device)
    machines: list[_NicPorts] = []  # per node
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
        _add_leaf_spine_fabric(document, machines, spec.fabric or FabricParameters())
    return document


def _add_leaf_spine_fabric(document: GraphDocument, machines: list[_NicPorts], fabric: FabricParameters) -> None:
    without = next((i for i, ports in enumerate(machines) if not ports), None)
    if without is not None:
        raise InputError(
            f"node {without} has no NIC for the network; give a file that lists NICs, or set 'nics' to a pattern that "
            "matches a NIC, or remove 'nodes' and 'fabric'"
        )
    size = fabric.nodes_per_unit or len(machines)
    leaves: dict[tuple[int, int], _NicPorts] = {}  # (unit, rail)
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
    document: GraphDocument, leaves: dict[tuple[int, int], _NicPorts], names: dict[tuple[int, int], str],
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
        wire = ImportedLink(capacity[rail] / count, fastest.efficiency, latency, fastest.medium, note)
        for spine in range(count):
            document.add_link(name, f"spine{spine}", wire)
