"""Node hardware for the topology kind ``machines``: GPUs, NVSwitch, PCIe switches, host bridges and NICs.

A machine is an NVLink domain, as for NCCL: a DGX box, or a whole rack of trays whose GPUs meet in NVSwitches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from simcluster.base.errors import InputError
from simcluster.documents.base_spec import Spec
from simcluster.documents.diagnostics import RuleError
from simcluster.topology.draft import ClusterDraft, RecordingGraph, check_link_count
from simcluster.topology.links import COMPUTE, EdgeData, Graph, LinkSpec, Name, add_gpus, add_nics, connect_pairs

Place = Literal["gpu", "pcie", "host"]
Few = Annotated[int, Field(strict=True, ge=1, le=1024)]
"""Number of parts of one machine."""


@dataclass(frozen=True, slots=True)
class NicPort:
    """NIC at one index in every node, and the link between this NIC and a fabric switch.

    ``rail`` numbers the NICs of a tray in the network.
    """

    nic: int
    rail: int
    network: str
    plane: int
    link: EdgeData = field(repr=False)


class NicSpec(Spec):
    """Group of identical NICs of a node.

    A NIC with several ``ports`` represents several that are driven as one, every message striped over them (NCCL merges
    the ports of a card; the AWS plug-in the cards of a GPU). Planes are copies of a network that never meet.
    """

    count: Few
    """Number of these NICs per box or tray, spread evenly over what they attach to (GPUs, PCIe switches or bridges)."""
    link: LinkSpec
    """Link from the NIC to its network switch."""
    ports: Few = 1
    """Number of NICs that are driven as one; the line rate of its link is multiplied by this."""
    slots: Few = 1
    """Number of PCIe slots of the NIC; the line rate of its PCIe link is multiplied by this."""
    pcie: LinkSpec | None = None
    """PCIe link of the NIC; default: the node's pcie."""
    at: Place | None = None
    """What the NIC attaches to: a GPU, PCIe switch or host bridge; default: the nearest to the GPUs in the node."""
    network: Name = COMPUTE
    """Name of the network that the NIC is on; collectives use the one named compute."""
    plane: Annotated[int, Field(strict=True, ge=0, lt=64)] = 0
    """Number of the NIC's plane: which of the separate copies of its network it is on."""


class HostSpec(Spec):
    """CPU host bridges of a box or tray."""

    count: Few = 1
    """Number of host bridges, one per processor."""
    upstream: LinkSpec | None = None
    """Link from a host bridge down to PCIe switches, or to GPUs if there are none (NVLink-C2C of a Grace); default: the
    node's pcie."""
    between: LinkSpec | None = None
    """Link between two host bridges."""

    @model_validator(mode="after")
    def _check_bridge_link(self) -> Self:
        if self.count > 1 and self.between is None:
            raise InputError(
                f"{self.count} host bridges need a link to each other: add between: "
                "{preset: upi-sapphire-rapids}, or set count: 1"
            )
        return self


class MachineSpec(Spec):
    """Node hardware: a box of GPUs, or a rack of such boxes whose GPUs share one NVLink domain.

    All NVSwitch chips are one node without a separate limit.  PCIe switches are linked to NICs (``pcie``) and to host
    bridges.  Without PCIe switches GPUs hang on the host bridge, if there is one, and NICs on GPUs, if ``at`` says so
    or there is no bridge.
    """

    gpus: Few = 8
    """Number of GPUs in a box, or in each tray of a rack."""
    trays: Few = 1
    """Number of boxes (trays) in a rack whose GPUs share one NVLink domain; jobs on several NVL72 racks mostly use 16
    of the 18 trays, 64 GPUs per rack."""
    nvlink: LinkSpec | None = None
    """Link between a GPU and the NVSwitches of its node; default: none."""
    mesh: LinkSpec | None = None
    """Link between every two GPUs of a box (AMD's xGMI), instead of NVSwitches; default: none."""
    pcie: LinkSpec
    """Link between a GPU and its PCIe switch, and between a PCIe switch and a NIC."""
    gpus_per_pcie_switch: Few | None = None
    """Number of GPUs under each PCIe switch; default: no PCIe switches."""
    host: HostSpec | None = None
    """CPU host bridges of a box or tray; default: none."""
    nics: tuple[NicSpec, ...]
    """NICs of a box or tray: a list with one entry per type of NIC."""

    @property
    def num_gpus(self) -> int:
        """Number of GPUs of the node, over all trays."""
        return self.gpus * self.trays

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if complaints := list(self._complaints()):
            raise RuleError(complaints)
        return self

    def _complaints(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if self.trays > 1 and self.nvlink is None:
            yield (
                ("trays",),
                f"{self.trays} trays form one node only by NVLink: add nvlink, or set trays: 1 and use more nodes",
            )
        if self.mesh is not None and self.nvlink is not None:
            yield (
                ("mesh",),
                "mesh and nvlink are both set; GPUs are linked directly (mesh) or by NVSwitches (nvlink): remove one",
            )
        per_switch = self.gpus_per_pcie_switch
        if per_switch and self.gpus % per_switch:
            what = f"{self.gpus} GPUs are not divisible by {per_switch} per PCIe switch"
            yield (
                ("gpus_per_pcie_switch",),
                f"{what}; every PCIe switch must have the same number: use one of {_list_divisors(self.gpus)}",
            )
        if not self.nics:
            yield ("nics",), "has no entry; add at least one group of NICs, such as {count: 8, link: {preset: ndr}}"
        for i, nic in enumerate(self.nics):
            where, places = self._nic_attachment(nic), self._count_attachment_points(self._nic_attachment(nic))
            if not places:
                having = "gpus_per_pcie_switch" if where == "pcie" else "host"
                yield ("nics", i, "at"), f"the node has no {_NAMES[where]} for 'at': {where}; add {having} or drop 'at'"
            elif where != "host" and nic.count % places and places % nic.count:
                what = f"{nic.count} NICs do not spread evenly over {places} {_NAMES[where]}"
                yield ("nics", i, "count"), f"{what}; use a multiple of {places}, or one of {_list_divisors(places)}"

    def _nic_attachment(self, nic: NicSpec) -> Place:
        if nic.at is not None:
            return nic.at
        return "pcie" if self.gpus_per_pcie_switch else "host" if self.host else "gpu"

    def _count_attachment_points(self, where: Place) -> int:
        """Return the number of GPUs, PCIe switches or host bridges of a box to which NICs can attach."""
        switches = self.gpus // self.gpus_per_pcie_switch if self.gpus_per_pcie_switch else 0
        return {"gpu": self.gpus, "pcie": switches, "host": self.host.count if self.host else 0}[where]

    # --- building ----------------------------------------------------------------------------------------------------

    def add_to_draft(self, draft: ClusterDraft, machines: int) -> list[NicPort]:
        """Add ``machines`` equal nodes to a draft; return the NIC ports that each of them has, in order.

        Nodes: node0.gpu0, node0.nvswitch, node0.pcie0, node0.host0, node0.nic0 (node0.storage-nic0 in a network of that
        name), ...; in a rack of trays rack0.nvswitch, rack0.tray0.gpu0, ...
        """
        check_link_count(
            machines * self.trays * max(self.gpus, *(nic.count for nic in self.nics)), "of one type inside nodes"
        )
        meshed = {"GPU - GPU": self.gpus if self.mesh else 1, "host - host": self.host.count if self.host else 1}
        for of, parts in meshed.items():
            check_link_count(machines * self.trays * (parts * (parts - 1) // 2), f"{of} inside nodes")
        graph = RecordingGraph()
        ports: list[tuple[str, NicPort]] = []
        name = "rack" if self.trays > 1 else "node"
        domain = f"{name}0"
        for tray in range(self.trays):
            box = f"{domain}.tray{tray}" if self.trays > 1 else domain
            self._add_gpus(graph, domain, box, tray)
            ports += self._add_nics(graph, box)
        if self.nvlink:
            graph.add_node(f"{domain}.nvswitch", kind="nvswitch")
        draft.add_machines(graph, machines, name)
        place = {node: number for number, node in enumerate(graph)}
        return [replace(port, nic=place[nic]) for nic, port in ports]

    def _add_gpus(self, graph: Graph, domain: str, box: str, tray: int) -> None:
        gpus = [f"{box}.gpu{i}" for i in range(self.gpus)]
        add_gpus(graph, ((gpu, 0, tray * self.gpus + i) for i, gpu in enumerate(gpus)))
        if self.trays > 1:
            graph.add_nodes_from(gpus, tray=tray)
        if self.nvlink:
            connect_pairs(graph, ((gpu, f"{domain}.nvswitch") for gpu in gpus), self.nvlink.link_attributes("nvlink"))
        if self.mesh:
            connect_pairs(graph, combinations(gpus, 2), self.mesh.link_attributes("nvlink"))
        below = gpus
        pcie = self.pcie.link_attributes("pcie")
        if self.gpus_per_pcie_switch:
            below = [f"{box}.pcie{i}" for i in range(self._count_attachment_points("pcie"))]
            graph.add_nodes_from(below, kind="pcie")
            connect_pairs(graph, _pair_evenly(gpus, below), pcie)
        if self.host:
            bridges = [f"{box}.host{i}" for i in range(self.host.count)]
            graph.add_nodes_from(bridges, kind="host")
            upstream = self.host.upstream.link_attributes("pcie") if self.host.upstream else pcie
            connect_pairs(graph, _pair_evenly(below, bridges), upstream)
            if self.host.between:
                connect_pairs(graph, combinations(bridges, 2), self.host.between.link_attributes("pcie"))

    def _add_nics(self, graph: Graph, box: str) -> Iterator[tuple[str, NicPort]]:
        numbered: dict[tuple[str, int], int] = {}
        fewer: dict[Place, int] = {}  # groups so far with fewer NICs than there are places
        for group in self.nics:
            where = self._nic_attachment(group)
            first = numbered.get((group.network, group.plane), 0)
            numbered[group.network, group.plane] = first + group.count
            plane = f"plane{group.plane}-" if any(nic.plane for nic in self.nics) else ""
            kind = f"{'' if group.network == COMPUTE else group.network + '-'}{plane}nic"
            nics = [f"{box}.{kind}{first + i}" for i in range(group.count)]
            add_nics(graph, nics, group.ports, group.network)
            places = [f"{box}.{where}{i}" for i in range(self._count_attachment_points(where))]
            if len(nics) >= len(places) or where != "gpu":
                pairs = _pair_evenly(nics, places, shift=fewer.get(where, 0))
                fewer[where] = fewer.get(where, 0) + (len(nics) < len(places))
            else:
                pairs = ((nic, gpu) for gpu, nic in _pair_evenly(places, nics))
            slot = (group.pcie or self.pcie).link_attributes("pcie")
            connect_pairs(graph, pairs, _bundle_links(slot, group.slots, "slots"))
            link = _bundle_links(group.link.link_attributes("network"), group.ports, "ports")
            for i, nic in enumerate(nics):
                yield nic, NicPort(-1, first + i, group.network, group.plane, link)


_NAMES = {"gpu": "GPUs", "pcie": "PCIe switches", "host": "host bridges"}


def _pair_evenly(lower: list[str], upper: list[str], shift: int = 0) -> Iterable[tuple[str, str]]:
    """Pair each node of ``lower`` with one of ``upper``, in order and evenly; ``shift`` shifts the pairing."""
    gap = max(1, len(upper) // len(lower))
    return ((node, upper[i * len(upper) // len(lower) + shift % gap]) for i, node in enumerate(lower))


def _bundle_links(link: EdgeData, count: int, label: str) -> EdgeData:
    """Return the attributes of one link that combines ``count`` equal links."""
    if count == 1:
        return link
    together: dict[str, Any] = {key: link[key] * count for key in ("line_rate", "bandwidth")}
    return link | together | {"source": f"{count} {label} as one; {link['source']}"}


def _list_divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)
