"""The constants of NCCL's tuner: latencies and bandwidth caps by algorithm, protocol, link, GPU and CPU generation.

Source of every number without another note: NVIDIA/nccl commit 5067397 (v2.30.7), src/graph/tuning.cc; the tables of
v2.18.3 are from tag v2.18.3-1 of the same file.  Of v2.18.3 only what is said here was compared; its caps per channel
and its correction of trees are taken to be those of v2.30.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Collective = Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"]
Algorithm = Literal["ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain", "pat"]
Protocol = Literal["LL", "LL128", "Simple"]
Architecture = Literal["volta", "ampere", "hopper", "blackwell"]
Link = Literal["nvlink", "pci", "net"]

COLLECTIVES: tuple[Collective, ...] = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")
ALGORITHMS: tuple[Algorithm, ...] = ("ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain", "pat")
PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")

US = 1e-6
GB = 1e9

_Latencies = tuple[float, float, float]  # us: LL, LL128, Simple
_ByNodes = tuple[float, float, float]  # GB/s: 1 node, 2 nodes, more


@dataclass(frozen=True, slots=True)
class Tables:
    """What one version of NCCL's tuner knows, in the units of its source: microseconds and GB/s.

    ``base``: per algorithm; ``hop``: per link and algorithm (what one step over that link takes).  ``ll_cap``: bus
    bandwidth of LL by GPU generation, or by CPU between nodes (Intel has the row of Volta, AMD that of Ampere).
    """

    version: str
    base: Mapping[str, _Latencies]
    hop: Mapping[tuple[str, str], _Latencies]
    ll_cap: Mapping[str, _ByNodes]
    ring_ll128_cap: Mapping[str, _ByNodes]
    tree_ll128_cap: Mapping[str, _ByNodes]
    tree_cap: Mapping[str, _ByNodes]
    nvls_tree_cap: Mapping[str, _ByNodes]
    nvls_efficiency: Mapping[str, float]


_NONE: _Latencies = (0.0, 0.0, 0.0)

_BASE_2_30: dict[str, _Latencies] = {
    "tree": (6.8, 14.0, 8.4),
    "ring": (6.6, 14.0, 8.4),
    "collnet_direct": _NONE,
    "collnet_chain": _NONE,
    "nvls": _NONE,
    "nvls_tree": _NONE,
    "pat": (8.0, 8.0, 8.0),
}
_HOP_2_30: dict[tuple[str, str], _Latencies] = {
    ("nvlink", "tree"): (0.6, 1.25, 4.0),
    ("nvlink", "ring"): (0.6, 1.9, 3.4),
    ("nvlink", "collnet_direct"): (0.0, 0.0, 3.7),
    ("nvlink", "collnet_chain"): (0.0, 0.0, 2.8),
    ("nvlink", "nvls"): (0.0, 0.0, 25.0),
    ("nvlink", "nvls_tree"): (0.0, 0.0, 25.0),
    ("nvlink", "pat"): (0.0, 0.0, 4.0),
    ("pci", "tree"): (1.0, 1.9, 4.0),
    ("pci", "ring"): (1.0, 2.5, 5.7),
    ("pci", "collnet_direct"): (0.0, 0.0, 3.7),
    ("pci", "collnet_chain"): (0.0, 0.0, 2.8),
    ("pci", "nvls"): _NONE,
    ("pci", "nvls_tree"): _NONE,
    ("pci", "pat"): (0.0, 0.0, 4.0),
    ("net", "tree"): (5.0, 8.5, 14.0),
    ("net", "ring"): (2.7, 4.0, 14.0),
    ("net", "collnet_direct"): (0.0, 0.0, 31.0),
    ("net", "collnet_chain"): (0.0, 0.0, 30.0),
    ("net", "nvls"): (0.0, 0.0, 18.0),
    ("net", "nvls_tree"): (0.0, 0.0, 20.9),
    ("net", "pat"): (0.0, 0.0, 14.0),
}
_BASE_2_18: dict[str, _Latencies] = {
    "tree": (6.8, 14.0, 0.0),
    "ring": (6.6, 14.0, 8.4),
    "collnet_direct": (6.8, 14.0, 0.0),
    "collnet_chain": (6.8, 14.0, 0.0),
    "nvls": (0.0, 0.0, 23.0),
    "nvls_tree": (0.0, 0.0, 23.0),
}
_HOP_2_18: dict[tuple[str, str], _Latencies] = {
    ("nvlink", "tree"): (0.6, 1.25, 4.0),
    ("nvlink", "ring"): (0.6, 1.9, 3.4),
    ("nvlink", "collnet_direct"): (0.0, 0.0, 8.0),
    ("nvlink", "collnet_chain"): (0.0, 0.0, 4.75),
    ("nvlink", "nvls"): _NONE,
    ("nvlink", "nvls_tree"): _NONE,
    ("pci", "tree"): (1.0, 1.9, 6.0),
    ("pci", "ring"): (1.0, 2.5, 5.7),
    ("pci", "collnet_direct"): (0.0, 0.0, 8.0),
    ("pci", "collnet_chain"): (0.0, 0.0, 8.0),
    ("pci", "nvls"): _NONE,
    ("pci", "nvls_tree"): _NONE,
    ("net", "tree"): (5.0, 8.5, 14.0),
    ("net", "ring"): (2.7, 4.0, 14.0),
    ("net", "collnet_direct"): (0.0, 0.0, 10.7),
    ("net", "collnet_chain"): (0.0, 0.0, 14.0),
    ("net", "nvls"): (0.0, 0.0, 18.0),
    ("net", "nvls_tree"): (0.0, 0.0, 19.0),
}

_LL_CAP: dict[str, _ByNodes] = {
    "volta": (39.0, 39.0, 20.4),
    "ampere": (87.7, 22.5, 19.0),
    "hopper": (141.0, 45.0, 35.0),
    "blackwell": (282.0, 90.0, 70.0),
}
_RING_LL128_CAP: dict[str, _ByNodes] = {
    "volta": (20.0, 20.0, 20.0),
    "ampere": (20.0, 20.0, 20.0),
    "hopper": (36.7, 36.7, 36.7),
    "blackwell": (40.0, 40.0, 40.0),
}
_TREE_LL128_CAP: dict[str, _ByNodes] = {
    "volta": (20.0, 20.0, 20.0),
    "ampere": (20.0, 20.0, 20.0),
    "hopper": (36.7, 36.7, 29.0),
    "blackwell": (55.6, 31.67, 20.0),
}
_TREE_CAP: dict[str, _ByNodes] = {
    "volta": (26.5, 18.5, 10.0),
    "ampere": (24.0, 23.6, 17.8),
    "hopper": (38.7, 41.4, 36.0),
    "blackwell": (70.0, 42.8, 24.0),
}
_NVLS_TREE_CAP: dict[str, _ByNodes] = {
    "volta": (26.5, 18.5, 10.0),
    "ampere": (24.0, 23.6, 17.8),
    "hopper": (0.0, 57.7, 45.5),
    "blackwell": (0.0, 96.0, 80.0),
}
_NVLS_EFFICIENCY = {"volta": 0.0, "ampere": 0.0, "hopper": 0.85, "blackwell": 0.74}


def _only(rows: dict[str, _ByNodes], names: tuple[str, ...]) -> dict[str, _ByNodes]:
    return {name: rows[name] for name in names}


_BEFORE_BLACKWELL = ("volta", "ampere", "hopper")

TABLES: Mapping[str, Tables] = MappingProxyType(
    {
        "2.30.7": Tables(
            version="2.30.7",
            base=_BASE_2_30,
            hop=_HOP_2_30,
            ll_cap=_LL_CAP,
            ring_ll128_cap=_RING_LL128_CAP,
            tree_ll128_cap=_TREE_LL128_CAP,
            tree_cap=_TREE_CAP,
            nvls_tree_cap=_NVLS_TREE_CAP,
            nvls_efficiency=_NVLS_EFFICIENCY,
        ),
        "2.18.3": Tables(
            version="2.18.3",
            base=_BASE_2_18,
            hop=_HOP_2_18,
            ll_cap={**_only(_LL_CAP, ("volta", "ampere")), "hopper": _LL_CAP["ampere"]},
            ring_ll128_cap=_only(_RING_LL128_CAP, _BEFORE_BLACKWELL),
            tree_ll128_cap=_only(_TREE_LL128_CAP, _BEFORE_BLACKWELL),
            tree_cap=_only(_TREE_CAP, _BEFORE_BLACKWELL),
            nvls_tree_cap=_only(_NVLS_TREE_CAP, _BEFORE_BLACKWELL),
            nvls_efficiency={name: _NVLS_EFFICIENCY[name] for name in _BEFORE_BLACKWELL},
        ),
    }
)

# What the bandwidth of a tree all-reduce is multiplied with, for sizes from 2^(6+i) to 2^(7+i) B (64 B .. 1 GiB).
# Outside that range the tuner corrects nothing: a tree gains a tenth at exactly 1 GiB, and may be chosen there.
TREE_CORRECTION: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
        "LL128": (
            *(1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6),
            *(0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1),
        ),
        "Simple": (
            *(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5),
            *(0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
        ),
    }
)

NET_OVERHEAD = MappingProxyType({"intel": 1.0, "amd": 2.0, "other": 1.0})  # us a step, three times that for Simple
RING_SIMPLE_PENALTY = 1.4  # of latency, all-reduce between nodes; before Ampere:
RING_SIMPLE_PENALTY_OLD = 1.9
RING_LL128_PART = 0.92
RING_LL_PART = 0.5
TREE_PART = 0.92
TREE_LL_DIVISOR = 3.8
TREE_LL128_PART_ONE_NODE = 7.0 / 9.0
TREE_LL128_PART = 120.0 / 128.0
PLAIN_TREE_PART = 0.85
PAT_PART = 0.75
PAT_INTER_DIVISOR = 3.5
PAT_RANK = 2.8  # us a rank
COLLNET_DIRECT_RANK = 0.4  # us for every further GPU of the node

# What one channel's buffer holds, B (NVIDIA/nccl 5067397 src/init.cc, src/include/device.h): 8 steps of each protocol.
BUFFER: Mapping[str, float] = MappingProxyType({"LL": 512.0 * 2**10, "LL128": 4_915_200.0, "Simple": 4.0 * 2**20})
