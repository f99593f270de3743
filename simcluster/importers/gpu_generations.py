"""Default link rates of each GPU generation, for topology files that state no rates.

Line rates are those of the standards. NVLink's efficiency is the ratio of NCCL's figure (v2.30.7, src/graph/topo.h:
what its graph search counts on) to the line rate; PCIe's is that of the link catalogue, because what the search counts
there (three quarters) is less than what copies get. Latencies are effective ones, so that a ring step costs what NCCL's
tuner counts for it (src/graph/tuning.cc hwLatencies, ring, Simple): 3.4 us by NVLink, 5.7 us over PCIe (four links,
across the host bridge), 14 us over the network (GPU - PCIe switch - NIC - leaf, and the same again); how a sum divides
is a convention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from simcluster.base.errors import InputError
from simcluster.documents.catalogue import load_link_entry
from simcluster.documents.yaml_documents import read_document
from simcluster.importers.cluster_document import ImportedLink, ImportSpec

NVSWITCH_LATENCY = 1.7e-6  # each of the two links of GPU - NVSwitch - GPU
NVLINK_LATENCY = 3.4e-6  # GPU - GPU without a switch
PCIE_LATENCY = 1.425e-6
NIC_LATENCY = 4.15e-6
SOCKET_LATENCY = 0.5e-6  # assumed: NCCL's tuner has no figure for it

_PCIE = ((4e9, "pcie5-x16"), (2e9, "pcie4-x16"), (0.0, "pcie3-x16"))  # catalogue link by minimum lane rate (B/s)


@dataclass(frozen=True, slots=True)
class GpuGeneration:
    """A GPU generation: NVLinks per GPU, and the PCIe, NIC and CPU link rates (B/s) of its DGX server."""

    name: str
    sm: int
    nvlinks: int
    pcie: float
    nic: float
    socket: float


TABLES = read_document(Path(__file__).with_name("gpu_generations.yaml")).data
_GENERATIONS = [GpuGeneration(name, **figures) for name, figures in TABLES["generations"].items()]


class DefaultLinks:
    """Default links of a GPU generation; rates that the user gives override them.

    ``generation`` is found in the device's name (for an inline device its name, else its base).
    """

    def __init__(self, spec: ImportSpec, device: object) -> None:
        if isinstance(device, Mapping):
            device = f"{device.get('name', '')} {device.get('base', '')}"
        text = str(device).lower()
        self.spec = spec
        self.generation = next((generation for generation in _GENERATIONS if generation.name in text), None)

    def single_nvlink(self, sm: int) -> ImportedLink:
        """Return one NVLink between two GPUs of compute capability ``sm`` / 10."""
        known: dict[str, tuple[float, float]] = TABLES["nvlink"]
        rate, payload = known[str(max((int(first) for first in known if int(first) <= sm), default=80))]
        source = f"NVLink of sm {sm}; efficiency: NCCL topo.h"
        return self.spec.nvlink.apply_to(ImportedLink(rate, payload / rate, NVLINK_LATENCY, "nvlink", source))

    def links_to_nvswitch(self, nvlink: ImportedLink) -> ImportedLink:
        """Return all NVLinks from a GPU to NVSwitches as one link, with half the latency of a GPU-to-GPU path."""
        given = self.spec.nvlink.latency
        return replace(nvlink, latency=NVSWITCH_LATENCY if given is None else given)

    def pcie_link(self, lane_rate: float, lanes: int, origin: str) -> ImportedLink:
        """Return a PCIe link of ``lanes`` lanes at ``lane_rate`` B/s each, with the link catalogue's efficiency."""
        like = next(name for fastest, name in _PCIE if lane_rate >= fastest)
        source = f"{origin}; efficiency as {like} of the link catalogue"
        wire = ImportedLink(lane_rate * lanes, load_link_entry(like)["efficiency"], PCIE_LATENCY, "pcie", source)
        return self.spec.pcie.apply_to(wire)

    def default_pcie_link(self, reason: str) -> ImportedLink:
        """Return the GPU generation's default PCIe link, for a file that does not state the PCIe rate."""
        return self.pcie_link(self.rate_or_default("pcie", reason) / 16, 16, "usual for the GPU, 16 lanes")

    def numa_link(self, rate: float, origin: str) -> ImportedLink:
        """Return the link between two NUMA nodes that carries ``rate`` bytes of payload per second."""
        return self.spec.socket.apply_to(ImportedLink(rate, 1.0, SOCKET_LATENCY, "socket", f"{origin}: NCCL topo.h"))

    def nic_cable(self, line_rate: float, medium: str, origin: str, *, latency: float = NIC_LATENCY) -> ImportedLink:
        """Return the link from a NIC port to the network, with the link efficiency of NVIDIA's DGX servers."""
        fast = line_rate >= 50e9 and medium == "infiniband"
        efficiency, like = (0.96, "dgx_h100") if fast else (0.948, "dgx_a100")
        source = f"{origin}; efficiency as in {like}.yaml"
        return self.spec.nic.apply_to(ImportedLink(line_rate, efficiency, latency, medium, source))

    def rate_or_default(self, link_type: str, reason: str) -> float:
        """Return the user's rate (B/s) of a link type (pcie, nic or socket), or else the GPU generation's."""
        given: float | None = getattr(self.spec, link_type).line_rate
        if given is not None:
            return given
        if self.generation is None:
            raise InputError(
                f"{reason}; add {link_type}: {{line_rate: ...}} to the import, or a device of a known generation "
                f"({', '.join(entry.name for entry in _GENERATIONS)} in its name)"
            )
        return float(getattr(self.generation, link_type))
