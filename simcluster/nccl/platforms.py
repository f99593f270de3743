"""Machines as NCCL's tuner sees them: GPU generation, CPU, and the channels that its graph search finds.

The search itself is not repeated: every preset says how many channels there are and what each is counted for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import did_you_mean
from simcluster.nccl.constants import GB, TABLES, US, Architecture, Tables


@dataclass(frozen=True, slots=True)
class ChannelGraph:
    """The channels of one pattern (ring, tree or NVLS).

    ``intra`` and ``inter`` are what the search counts for one channel inside a node and between nodes, B/s.
    ``plain_tree``: the search fell back to the plain tree (all traffic of a channel through one GPU of the node).
    ``wire`` is what the slower of NIC and NVLink is counted for, B/s a channel between nodes, where that lies between
    two entries of the search's list of speeds and ``inter`` is the lower one; 0 if it does not.
    """

    channels: int
    intra: float
    inter: float
    plain_tree: bool = False
    wire: float = 0.0

    def of_part(self, gpus: int, all_gpus: int) -> ChannelGraph:
        """The channels between nodes when only ``gpus`` of a node's ``all_gpus`` take part: those of their own NICs.

        The data-parallel group of a job with tp = 8 has one GPU a node, so one NIC a node.  NVLink then has room for
        what the NICs bring, and with one GPU a node there is no NVLink hop: the wire alone counts.
        """
        if gpus == all_gpus:
            return self
        channels = max(1, self.channels * gpus // all_gpus)
        rate = self.wire or self.inter
        return replace(self, channels=channels, intra=rate if gpus == 1 else self.intra, inter=rate, wire=0.0)


@dataclass(frozen=True, slots=True)
class Graphs:
    """The graphs that NCCL's search found for one number of nodes; ``nvls`` None: no multicast in the switches."""

    ring: ChannelGraph
    tree: ChannelGraph
    nvls: ChannelGraph | None = None


@dataclass(frozen=True, slots=True)
class Effective:
    """What a machine needs on top of the tuner's estimate, fitted on measured runs: at most three numbers.

    ``launch`` (s) is added to every call: issuing the kernels and NCCL's start on that host.  ``fill`` (s) is what
    filling the pipeline costs a large call, see ``simcluster.nccl.predictor``.  ``achieved`` is the part of the tuner's
    bandwidth that large calls reach.  ``rows`` says which measurements they were fitted on.
    """

    launch: float = 0.0
    fill: float = 0.0
    achieved: float = 1.0
    rows: str = ""


@dataclass(frozen=True, slots=True)
class Platform:
    """A kind of node and its network, as the tuner sees it.

    ``cpu`` matters between nodes only.  ``several`` is None for a machine without a network of its own.
    ``ll128_inter``: NIC and GPU meet below the host bridge (PXB, or PXN on Hopper), which LL128 needs between nodes.
    """

    name: str
    architecture: Architecture
    cpu: Literal["intel", "amd", "other"]
    one: Graphs
    several: Graphs | None
    gpus_per_node: int = 8
    link: Literal["nvlink", "pci"] = "nvlink"
    version: str = "2.30.7"
    ll128_inter: bool = True
    collnet: bool = False
    effective: Effective = Effective()
    source: str = ""

    def __post_init__(self) -> None:
        if self.version not in TABLES:
            raise InputError(f"there are no tables of NCCL {self.version!r}; there are those of {', '.join(TABLES)}")
        if self.architecture not in self.tables.ll_cap:
            raise InputError(
                f"NCCL {self.version} knows {', '.join(self.tables.ll_cap)}, not {self.architecture}; "
                f"{self.name} needs version 2.30.7"
            )

    @property
    def tables(self) -> Tables:
        """The constants of this platform's version of NCCL."""
        return TABLES[self.version]

    def graphs(self, nodes: int) -> Graphs:
        """The graphs for that many nodes; InputError if this platform has no network."""
        if nodes == 1:
            return self.one
        if self.several is None:
            raise InputError(f"NCCL platform {self.name} is one node without a network; {nodes} nodes were asked for")
        return self.several


def _same(channels: int, rate: float, *, tree: ChannelGraph | None = None, nvls: ChannelGraph | None = None) -> Graphs:
    """Rings, and unless said otherwise trees, of so many channels that are counted for ``rate`` GB/s everywhere."""
    ring = ChannelGraph(channels, rate * GB, rate * GB)
    return Graphs(ring=ring, tree=tree or ring, nvls=nvls)


_SEARCH = "channels derived by hand from the rules and speed lists of NVIDIA/nccl 5067397 src/graph/search.cc"
_TESTS = "nccl-tests all-reduce from 1 MiB up"

# How the three numbers were fitted: ``launch`` is the median, over calls of 1 to 64 KiB, of what the tuner's estimate
# misses; then ``fill`` and ``achieved`` make the worst set smallest, each set's mean |log(predicted / measured)|
# counted in units of its target (8 % on one node, 12 % on two).  Rounded.  The newer OCI run counts as a ring, which
# its rate is, and those of issue 1455 as what they name.  Refitted without it, a set is predicted to: 8 A100-40G 8.4 %,
# 8 A100 9.3, 2 x 8 A100 8.1 and 1.6; 8 H100 14.8 (no other set has one H100 node below 128 MiB) and 1.5, 4 to 8 H100
# 1.3, 2 x 8 H100 3.7 and 10.8 %.  Left out of all fits: 2 x 8 H100 by mpi-operator, a ring where NVLS trees should run.
_AMPERE = Effective(
    launch=20 * US,
    fill=190 * US,
    achieved=0.982,
    rows=f"{_TESTS}: 8 A100-40G (superbenchmark log), 8 A100 (stas00/ml-engineering), 2 x 8 A100-40G (two documents of "
    "OCI); launch: superbenchmark and OCI, 1 to 64 KiB (21 and 17 us; 29 us on the third machine)",
)
_HOPPER = Effective(
    launch=3 * US,
    fill=120 * US,
    achieved=1.012,
    rows=f"{_TESTS}: 8 H100 (NVIDIA/dgxc-benchmarking; NVIDIA/nccl-tests issue 290), 4 to 8 H100 at 4 GiB (NVIDIA/nccl "
    "issue 1455), 2 x 8 H100 (NVIDIA/nccl-tests issue 309, two machines); launch: the first and the last, 1 to 64 KiB",
)

_PRESETS = (
    Platform(
        name="dgx-v100",
        architecture="volta",
        cpu="intel",
        one=_same(6, 20.0),
        several=_same(4, 12.0),
        effective=Effective(
            rows="none: the tuner's estimate as it is; 122 GB/s busbw is NVIDIA's figure, 120 the model's"
        ),
        source=f"DGX-1V: 6 NVLink x 20 GB/s (topo.h), 4 x 100 Gbit/s EDR counted 12 GB/s each; {_SEARCH}",
    ),
    Platform(
        name="dgx-a100",
        architecture="ampere",
        cpu="amd",
        one=_same(12, 20.0),
        several=_same(8, 24.0, tree=ChannelGraph(8, 30.0 * GB, 24.0 * GB)),
        effective=_AMPERE,
        source=f"DGX A100: 12 NVLink x 20 GB/s (topo.h), 8 x 200 Gbit/s HDR counted 24 GB/s each; {_SEARCH}",
    ),
    Platform(
        name="oci-gpu4",
        architecture="ampere",
        cpu="amd",
        one=_same(12, 20.0),
        several=_same(16, 12.0, tree=ChannelGraph(16, 15.0 * GB, 12.0 * GB)),
        effective=_AMPERE,
        source="OCI BM.GPU4.8 and BM.GPU.B4.8: 8 A100, 16 x 100 Gbit/s RoCE counted 12 GB/s each; inside a node the "
        f"search raises trees to what NVLink has left, 16 x 15 GB/s; {_SEARCH}",
    ),
    Platform(
        name="dgx-h100",
        architecture="hopper",
        cpu="intel",
        one=_same(12, 30.0, nvls=ChannelGraph(8, 40.0 * GB, 40.0 * GB)),
        several=Graphs(
            ring=ChannelGraph(8, 45.0 * GB, 45.0 * GB, wire=48.0 * GB),
            tree=ChannelGraph(8, 45.0 * GB, 45.0 * GB),
            nvls=ChannelGraph(8, 45.0 * GB, 45.0 * GB),
        ),
        effective=_HOPPER,
        source="DGX H100: 18 NVLink x 20.6 GB/s (topo.h), 8 x 400 Gbit/s NDR counted 48 GB/s each; a ring gets the 45 "
        f"of the speed list, 8 x 48 would pass the 370.8 GB/s of NVLink but for the hop that is no NVLink; {_SEARCH}",
    ),
    Platform(
        name="dgx-b200",
        architecture="blackwell",
        cpu="intel",
        one=_same(8, 90.0, nvls=ChannelGraph(8, 80.0 * GB, 80.0 * GB)),
        several=_same(8, 48.0, nvls=ChannelGraph(8, 80.0 * GB, 48.0 * GB)),
        effective=Effective(
            launch=_HOPPER.launch,
            fill=_HOPPER.fill,
            achieved=1.0,
            rows="none by size: launch and fill carried from H100; busbw of large calls is 720 by ring and 829 GB/s by "
            "NVLS where NVIDIA states 700 and 850 (GTC 2024 S62129, GTC 2025 S72583)",
        ),
        source="DGX B200: 18 NVLink x 40.1 GB/s (topo.h), 8 x 400 Gbit/s counted 48 GB/s each; NVLS at 80 GB/s a "
        f"channel is what the stated 850 GB/s ask for, the next step of the speed list is 90; {_SEARCH}",
    ),
    Platform(
        name="pcie-gen4",
        architecture="ampere",
        cpu="amd",
        one=_same(2, 12.0),
        several=None,
        link="pci",
        effective=Effective(rows="none: the tuner's estimate as it is; NVIDIA states 24 GB/s busbw"),
        source=f"8 GPUs on PCIe Gen4 x16, twice the 12 GB/s that topo.h counts for Gen3; {_SEARCH}",
    ),
    Platform(
        name="pcie-gen5",
        architecture="hopper",
        cpu="intel",
        one=_same(2, 24.0),
        several=None,
        link="pci",
        effective=Effective(rows="none: the tuner's estimate as it is; NVIDIA states 48 GB/s busbw"),
        source=f"8 GPUs on PCIe Gen5 x16, four times the 12 GB/s that topo.h counts for Gen3; {_SEARCH}",
    ),
)
PLATFORMS: Mapping[str, Platform] = MappingProxyType({preset.name: preset for preset in _PRESETS})


def platform_names() -> tuple[str, ...]:
    """The platforms that ship."""
    return tuple(PLATFORMS)


def load_platform(name: str) -> Platform:
    """A platform by name; InputError for one that does not ship."""
    if name not in PLATFORMS:
        near = did_you_mean(name, PLATFORMS)
        raise InputError(f"there is no NCCL platform {name!r}{near}; those that ship: {', '.join(PLATFORMS)}")
    return PLATFORMS[name]
