"""Machines of any make on a fabric of any kind, and further networks beside it: ``kind: machines``.

To add a fabric: a spec with ``kind`` and ``add(site, ports, machines)``, and its name in ``AnyFabric``.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from simcluster.documents.diagnostics import Complaint, RuleError, did_you_mean
from simcluster.documents.spec import Count
from simcluster.topology.cluster import Cluster, drafted_cluster
from simcluster.topology.draft import Draft
from simcluster.topology.dragonfly import DragonflyPlusSpec
from simcluster.topology.links import COMPUTE, Name, Title
from simcluster.topology.machine_parts import MachineSpec, NicPort
from simcluster.topology.sizes import check_gpus
from simcluster.topology.spec import Fields, TopologySpec
from simcluster.topology.trees import FatTreeSpec, RailOnlySpec, RailOptimisedSpec, Site

AnyFabric: TypeAlias = Annotated[
    FatTreeSpec | RailOptimisedSpec | RailOnlySpec | DragonflyPlusSpec, Field(discriminator="kind")
]

_CABLE = {"line_rate": "50 GB/s", "latency": "1 us"}


class MachinesSpec(TopologySpec):
    """``nodes`` machines alike, the ``fabric`` that collectives use, and one for each other network of their NICs."""

    EXAMPLE: ClassVar[Fields] = {
        "nodes": 3, "machine": {"gpus": 2, "pcie": _CABLE, "nics": [{"count": 2, "link": _CABLE}]},
        "fabric": {"kind": "fat_tree", "nodes_per_unit": 2},
    }  # fmt: skip

    kind: Literal["machines"]
    name: Title = "cluster"
    nodes: Count
    machine: MachineSpec
    fabric: AnyFabric
    other_networks: dict[Name, AnyFabric] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        check_gpus(self.nodes * self.machine.num_gpus)
        complaints: list[Complaint] = []
        for path, fabric in [
            (("fabric",), self.fabric),
            *((("other_networks", n), f) for n, f in self.other_networks.items()),
        ]:
            if isinstance(fabric, DragonflyPlusSpec):
                complaints += [((*path, *key), what) for key, what in fabric.complaints(self.nodes)]
        used = dict.fromkeys(nic.network for nic in self.machine.nics)
        for i, nic in enumerate(self.machine.nics):
            if nic.network != COMPUTE and nic.network not in self.other_networks:
                what = f"nothing describes the network {nic.network!r}{did_you_mean(nic.network, self.other_networks)}"
                fix = f"give other_networks: {{{nic.network}: {{kind: fat_tree, nodes_per_unit: 32}}}}"
                complaints.append((("machine", "nics", i, "network"), f"{what}; {fix}, or leave network out"))
        if COMPUTE not in used:
            complaints.append((("machine", "nics"), "no NIC is on the compute network; leave network out of one group"))
        for name in self.other_networks:
            if name not in used or name == COMPUTE:
                what = f"no NIC of the machine is on it{did_you_mean(name, [n for n in used if n != COMPUTE])}"
                complaints.append((("other_networks", name), f"{what}; give a group of nics network: {name}"))
        if complaints:
            raise RuleError(complaints)
        return self

    def build(self) -> Cluster:
        """The cluster: the machines as MachineSpec.add names them, then the switches as each fabric does.

        Switches of other networks are called storage.leaf0, ...; those of planes plane0.leaf0, ...
        """
        draft = Draft()
        networks: dict[tuple[str, int], list[NicPort]] = {}
        for port in self.machine.add(draft, self.nodes):
            networks.setdefault((port.network, port.plane), []).append(port)
        planes = any(plane for _, plane in networks)
        for (network, plane), own in networks.items():
            fabric = self.fabric if network == COMPUTE else self.other_networks[network]
            prefix = ("" if network == COMPUTE else f"{network}.") + (f"plane{plane}." if planes else "")
            fabric.add(Site(draft, network, prefix), own, self.nodes)
        return drafted_cluster(self.name, self.device, draft, self.routing, self.nccl)
