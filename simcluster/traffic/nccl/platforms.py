"""Platforms (node types) as NCCL's tuner sees them: GPU generation, CPU, and channels of rings and trees.

The search itself is not repeated: every preset states how many channels there are and what each is counted for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import did_you_mean
from simcluster.documents.yaml_documents import read_document
from simcluster.traffic.nccl.constants import GB, LATEST, TABLES, US, Architecture, TuningTables


@dataclass(frozen=True, slots=True)
class ChannelGraph:
    """Channels of one communication pattern (ring, tree or NVLS) that NCCL's graph search finds.

    ``intra`` and ``inter`` are what the search counts for one channel inside a node and between nodes, B/s.
    ``plain_tree``: the search fell back to the plain tree (all traffic of a channel through one GPU of the node).
    ``wire`` is what the slower of NIC and NVLink is counted for, in B/s per channel between nodes, where that lies
    between two entries of the search's list of speeds and ``inter`` is the lower one; 0 if it does not.
    """

    channels: int
    intra: float
    inter: float
    plain_tree: bool = False
    wire: float = 0.0

    def for_gpus(self, gpus: int, all_gpus: int) -> ChannelGraph:
        """Return the channels between nodes if only ``gpus`` of a node's ``all_gpus`` take part.

        These are the channels of their NICs. The data-parallel group of a job with tp = 8 has one GPU per node, so one
        NIC per node. NVLink then has room for what the NICs bring, and with one GPU there is no NVLink hop: the wire
        alone counts.
        """
        if gpus == all_gpus:
            return self
        channels = max(1, self.channels * gpus // all_gpus)
        rate = self.wire or self.inter
        return replace(self, channels=channels, intra=rate if gpus == 1 else self.intra, inter=rate, wire=0.0)


@dataclass(frozen=True, slots=True)
class ChannelGraphs:
    """Channels of rings, trees and NVLS for one node or several nodes; ``nvls`` is None without multicast."""

    ring: ChannelGraph
    tree: ChannelGraph
    nvls: ChannelGraph | None = None


@dataclass(frozen=True, slots=True)
class FittedCorrections:
    """Fitted corrections of the tuner's estimate: at most four numbers per platform.

    ``launch`` (s) is added to every call: issuing the kernels and NCCL's start on that host. ``start`` (s) is what
    every channel that a call engages takes to start in one node (between nodes the network's start is the longer one
    and hides it). ``fill`` (s) is what filling the pipeline costs a large call on a ring, ``loop`` (s) what NVLink
    SHARP loses in a loop over its chunks, see ``traffic.nccl.predictor``. ``achieved`` is the part of the tuner's
    bandwidth that large calls reach. ``rows`` states which measurements they were fitted on.
    """

    launch: float = 0.0
    start: float = 0.0
    fill: float = 0.0
    loop: float = 0.0
    achieved: float = 1.0
    rows: str = ""


@dataclass(frozen=True, slots=True)
class Platform:
    """Node type and its network, as NCCL's tuner sees them.

    ``cpu`` matters between nodes only. ``several`` is None for a node without a network. ``ll128_inter``: NIC and GPU
    meet below the host bridge (PXB, or PXN on Hopper), which LL128 needs between nodes.
    """

    name: str
    architecture: Architecture
    cpu: Literal["intel", "amd", "other"]
    one: ChannelGraphs
    several: ChannelGraphs | None
    gpus_per_node: int = 8
    link: Literal["nvlink", "pci"] = "nvlink"
    version: str = LATEST
    ll128_inter: bool = True
    collnet: bool = False
    effective: FittedCorrections = FittedCorrections()
    source: str = ""

    def __post_init__(self) -> None:
        if self.version not in TABLES:
            raise InputError(f"no tuner tables for NCCL {self.version!r}; available: {', '.join(TABLES)}")
        if self.architecture not in self.tables.ll_cap:
            raise InputError(
                f"NCCL {self.version} supports {', '.join(self.tables.ll_cap)}, not {self.architecture}; "
                f"platform {self.name} needs version {LATEST}"
            )

    @property
    def tables(self) -> TuningTables:
        """Constants of this platform's version of NCCL."""
        return TABLES[self.version]

    @property
    def with_newest_tables(self) -> Platform:
        """Same platform with the newest version of NCCL's tuner tables."""
        return self if self.version == LATEST else replace(self, version=LATEST)

    def channel_graphs(self, nodes: int) -> ChannelGraphs:
        """Return the channels for this number of nodes; raise InputError if the platform has no network."""
        if nodes == 1:
            return self.one
        if self.several is None:
            raise InputError(
                f"NCCL platform {self.name} is one node without a network; nodes is {nodes}, but must be 1"
            )
        return self.several


@cache
def _read_platforms() -> dict[str, Platform]:
    known = read_document(Path(__file__).with_suffix(".yaml")).data
    found = {}
    for name, written in known["platforms"].items():
        entry = {**known["platforms"].get(written.get("base"), {}), **written}
        entry.pop("base", None)
        graphs = [_parse_graphs(entry[nodes]) if nodes in entry else None for nodes in ("one", "several")]
        fitted = {**known["fits"].get(entry.pop("fit", ""), {}), **entry.pop("effective", {})}
        scaled = {
            key: value * US if key in ("launch", "start", "fill", "loop") else value for key, value in fitted.items()
        }
        entry |= {"one": graphs[0], "several": graphs[1], "effective": FittedCorrections(**scaled)}
        found[name] = Platform(name=name, **{**entry, "source": f"{entry['source']}; {known['derived']}"})
    return found


def _parse_graphs(written: Mapping[str, Sequence[float]]) -> ChannelGraphs:
    """Parse the file's channel lists: [channels, GB/s inside a node, between nodes, optionally of the wire]."""
    found = {
        name: ChannelGraph(int(channels), intra * GB, inter * GB, wire=wire[0] * GB if wire else 0.0)
        for name, (channels, intra, inter, *wire) in written.items()
    }
    return ChannelGraphs(found["ring"], found.get("tree", found["ring"]), found.get("nvls"))


def platform_names() -> tuple[str, ...]:
    """Return the names of the built-in platforms."""
    return tuple(_read_platforms())


def load_platform(name: str) -> Platform:
    """Return a built-in platform by name; raise InputError for an unknown one."""
    known = _read_platforms()
    if name not in known:
        raise InputError(f"there is no NCCL platform {name!r}{did_you_mean(name, known)}; built-in: {', '.join(known)}")
    return known[name]


class NcclTimingFactors(NamedTuple):
    """Factors that scale a platform's NCCL latency, and its bandwidth inside and between nodes."""

    latency: float = 1.0
    in_node: float = 1.0
    between: float = 1.0


AS_MEASURED = NcclTimingFactors()
