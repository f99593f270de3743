"""Default link rates by GPU generation, for topology files that state no rates.

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
from simcluster.documents.catalogue.links import link_document
from simcluster.documents.reading import read_document
from simcluster.importers.cluster_document import ImportSpec, Wire

NVSWITCH_LATENCY = 1.7e-6  # each of the two links of GPU - NVSwitch - GPU
NVLINK_LATENCY = 3.4e-6  # GPU - GPU without a switch
PCIE_LATENCY = 1.425e-6
NIC_LATENCY = 4.15e-6
SOCKET_LATENCY = 0.5e-6  # assumed: NCCL's tuner has no figure for it

_PCIE = ((4e9, "pcie5-x16"), (2e9, "pcie4-x16"), (0.0, "pcie3-x16"))  # catalogue link by minimum lane rate (B/s)


@dataclass(frozen=True, slots=True)
class Generation:
    """NVLinks per GPU, and PCIe, NIC and CPU link rates (B/s) of a GPU generation's DGX server."""

    name: str
    sm: int
    nvlinks: int
    pcie: float
    nic: float
    socket: float


TABLES = read_document(Path(__file__).with_suffix(".yaml")).data
_GENERATIONS = [Generation(name, **figures) for name, figures in TABLES["generations"].items()]


class UsualWires:
    """Default links of a GPU generation, overridden by rates that the user gives.

    ``generation`` is found in the device's name (for an inline device its name, else its base).
    """

    def __init__(self, spec: ImportSpec, device: object) -> None:
        if isinstance(device, Mapping):
            device = f"{device.get('name', '')} {device.get('base', '')}"
        text = str(device).lower()
        self.spec = spec
        self.generation = next((generation for generation in _GENERATIONS if generation.name in text), None)

    def nvlink(self, sm: int) -> Wire:
        """Return one direct NVLink between GPUs of compute capability ``sm`` / 10."""
        known: dict[str, tuple[float, float]] = TABLES["nvlink"]
        line, payload = known[str(max((int(first) for first in known if int(first) <= sm), default=80))]
        wire = Wire(line, payload / line, NVLINK_LATENCY, "nvlink", f"NVLink of sm {sm}; efficiency: NCCL topo.h")
        return self.spec.nvlink.apply_to(wire)

    def nvlink_to_nvswitch(self, wire: Wire) -> Wire:
        """Return a GPU's NVLinks to an NVSwitch, with half the latency of a GPU-to-GPU path."""
        given = self.spec.nvlink.latency
        return replace(wire, latency=NVSWITCH_LATENCY if given is None else given)

    def pcie(self, lane: float, lanes: int, what: str) -> Wire:
        """Return a PCIe link of ``lanes`` lanes at ``lane`` B/s each, with the catalogue's efficiency."""
        like = next(name for fastest, name in _PCIE if lane >= fastest)
        source = f"{what}; efficiency as {like} of the link catalogue"
        wire = Wire(lane * lanes, link_document(like)["efficiency"], PCIE_LATENCY, "pcie", source)
        return self.spec.pcie.apply_to(wire)

    def usual_pcie(self, why: str) -> Wire:
        """Return the GPU generation's default PCIe link, for a file that states none."""
        return self.pcie(self.rate_or_default("pcie", why) / 16, 16, "usual for the GPU, 16 lanes")

    def socket(self, payload: float, what: str) -> Wire:
        """Return the link between two NUMA nodes with a payload rate of ``payload`` B/s."""
        return self.spec.socket.apply_to(Wire(payload, 1.0, SOCKET_LATENCY, "socket", f"{what}: NCCL topo.h"))

    def nic_cable(self, line_rate: float, medium: str, what: str, *, latency: float = NIC_LATENCY) -> Wire:
        """Return the cable of a NIC port, with the link efficiency of NVIDIA's DGX."""
        fast = line_rate >= 50e9 and medium == "infiniband"
        efficiency, like = (0.96, "dgx_h100") if fast else (0.948, "dgx_a100")
        return self.spec.nic.apply_to(
            Wire(line_rate, efficiency, latency, medium, f"{what}; efficiency as in {like}.yaml")
        )

    def rate_or_default(self, figure: str, why: str) -> float:
        """Return the user's rate, or the GPU generation's default (B/s), of ``pcie``, ``nic`` or ``socket``."""
        given: float | None = getattr(self.spec, figure).line_rate
        if given is not None:
            return given
        if self.generation is None:
            raise InputError(
                f"{why}; add {figure}: {{line_rate: ...}} to the import, or a device of a known generation "
                f"({', '.join(entry.name for entry in _GENERATIONS)} in its name)"
            )
        return float(getattr(self.generation, figure))
