"""Import of a cluster from a network file of ASTRA-sim's analytical backend.

    topology: [Switch, Ring]
    npus_count: [8, 4]
    bandwidth: [400, 50]    # "GB/s", by which ASTRA-sim means 2^30 bytes per second
    latency: [936.25, 1000] # ns

The unit is a trap: the backend turns ``bandwidth`` into bytes per ns with 1 << 30 (astra-network-analytical,
common/Type.h and ``bw_GBps_to_Bpns``, from knowledge of them), so 400 is 429.5e9 B/s. Every link has that bandwidth in
each direction, and ``latency``; a path through a switch pays the latency twice, once per hop.

NPU numbers run through the first dimension fastest. NPUs of equal coordinates in all other dimensions share a ring, a
switch or a full mesh. An NPU forwards traffic for others (rings and several dimensions need that): it is a GPU attached
to a small switch, over a link without latency that is never the bottleneck.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from simcluster.base.errors import InputError
from simcluster.documents.base_spec import Spec
from simcluster.documents.yaml_documents import parse_document, validate_document
from simcluster.importers.cluster_document import GraphDocument, ImportedLink, ImportSpec

PARAMETERS = ()
_KINDS = Literal["Ring", "Switch", "FullyConnected"]
_MAX_CHARACTERS = 20_000
_MAX_NPUS = 100_000
_MAX_LINKS = 1_000_000
_SOURCE = "ASTRA-sim network file; its GB/s are 2^30 B/s"
_NETWORK_MARK = re.compile(r"^npus_count[ \t]*:", re.MULTILINE)


def is_astra_network(text: str) -> bool:
    """Return whether a text looks like an ASTRA-sim network file."""
    return _NETWORK_MARK.search(text) is not None


@dataclass(frozen=True, slots=True)
class NetworkDimension:
    """Dimension of an ASTRA-sim network: topology kind, NPUs along it, link bandwidth (B/s) and hop latency (s)."""

    kind: str
    npus: int
    bandwidth: float
    latency: float

    @property
    def link_count(self) -> int:
        """Number of links in one ring, switch or full mesh of this dimension."""
        if self.npus == 1:
            return 0
        if self.kind == "FullyConnected":
            return self.npus * (self.npus - 1) // 2
        return 1 if self.kind == "Ring" and self.npus == 2 else self.npus

    @property
    def port_count(self) -> int:
        """Number of links of this dimension that each NPU has."""
        most = {"Ring": 2, "Switch": 1, "FullyConnected": self.npus}[self.kind]
        return min(self.npus - 1, most)


class _AstraNetworkFile(Spec):
    """Schema of an ASTRA-sim network file; each list in the file has one item per network dimension."""

    topology: Annotated[list[_KINDS], Field(min_length=1, max_length=16)]
    npus_count: list[Annotated[int, Field(strict=True, ge=1, le=_MAX_NPUS)]]
    bandwidth: list[Annotated[float, Field(strict=True, ge=1e-6, le=1e12)]]
    latency: list[Annotated[float, Field(strict=True, ge=0, le=1e12)]]


def parse_astra_network(text: str, source: str) -> tuple[NetworkDimension, ...]:
    """Parse an ASTRA-sim network file; raise InputError that names the line and key of an invalid value."""
    if len(text) > _MAX_CHARACTERS:
        raise InputError(f"{source}: longer than {_MAX_CHARACTERS:,} characters, the limit; check the path")
    file = validate_document(_AstraNetworkFile, parse_document(text, source=source))
    lengths = {key: len(getattr(file, key)) for key in _AstraNetworkFile.model_fields}
    if len({*lengths.values()}) > 1:
        counted = ", ".join(f"{key} {length}" for key, length in lengths.items())
        raise InputError(f"{source}: the lists differ in length ({counted}); write one item per dimension in each")
    each = zip(file.topology, file.npus_count, file.bandwidth, file.latency, strict=True)
    found = tuple(NetworkDimension(kind, npus, rate * 2**30, latency / 1e9) for kind, npus, rate, latency in each)
    npus = math.prod(each.npus for each in found)
    links = sum(each.link_count * npus // each.npus for each in found)
    if not 2 <= npus <= _MAX_NPUS or links > _MAX_LINKS:
        raise InputError(
            f"{source}: describes {npus:,} NPUs and {links:,} links; from 2 to {_MAX_NPUS:,} NPUs and up to "
            f"{_MAX_LINKS:,} links can be imported"
        )
    return found


def build_astra_document(
    dimensions: tuple[NetworkDimension, ...], spec: ImportSpec, device: str | Mapping[str, object], name: str
) -> GraphDocument:
    """Return the topology document of an ASTRA-sim network, with each NPU as a GPU of ``device``."""
    spec.check_parameters("ASTRA-sim's network file", PARAMETERS)
    npus = math.prod(each.npus for each in dimensions)
    document = GraphDocument(name, device if isinstance(device, str) else dict(device))
    ports = sum(each.bandwidth * each.port_count for each in dimensions)
    own = ImportedLink(max(ports, 1.0), 1.0, 0.0, "npu", "rate of all links of the NPU together")
    for npu in range(npus):
        document.add_node(f"npu{npu}", "gpu", host=npu)
        document.add_node(f"npu{npu}.router", "switch", tier="npu")
        document.add_link(f"npu{npu}", f"npu{npu}.router", own)
    for place, dimension in enumerate(dimensions):
        lines = group_npus_along_axes(dimensions, tuple(other == place for other in range(len(dimensions))))
        for number, line in enumerate(lines):
            members = [f"npu{npu}.router" for npu in line]
            _add_dimension_links(document, dimension, members, f"dim{place}.switch{number}")
    return document


def _add_dimension_links(document: GraphDocument, dimension: NetworkDimension, members: list[str], switch: str) -> None:
    if dimension.npus == 1:
        return
    wire = ImportedLink(dimension.bandwidth, 1.0, dimension.latency, "network", _SOURCE)
    if dimension.kind == "Switch":
        document.add_node(switch, "switch", tier="dimension")
        for member in members:
            document.add_link(member, switch, wire)
    elif dimension.kind == "Ring":
        for place in range(dimension.link_count):
            document.add_link(members[place], members[(place + 1) % len(members)], wire)
    else:
        for place, member in enumerate(members):
            for other in members[place + 1 :]:
                document.add_link(member, other, wire)


def group_npus_along_axes(dimensions: tuple[NetworkDimension, ...], chosen: tuple[bool, ...]) -> list[list[int]]:
    """Group the NPUs that differ only in the ``chosen`` dimensions; return a list of NPU numbers per group."""
    sizes = [each.npus for each in reversed(dimensions)]  # the last dimension is the slowest
    free = [axis for axis, moves in enumerate(reversed(chosen)) if moves]
    grid = np.moveaxis(np.arange(math.prod(sizes)).reshape(sizes), free, range(-len(free), 0))
    groups: list[list[int]] = grid.reshape(-1, math.prod(sizes[axis] for axis in free)).tolist()
    return groups
