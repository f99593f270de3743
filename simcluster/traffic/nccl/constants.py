"""Constants of NCCL's tuner: latencies and bandwidth caps by algorithm, protocol, link, GPU and CPU generation.

Source of every number without another note: NVIDIA/nccl commit 5067397 (v2.30.7), src/graph/tuning.cc. Its tables are
in ``tables.csv`` in this folder.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

Collective = Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"]
Algorithm = Literal["ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain", "pat"]
Exchange = Literal["all_to_all", "send"]
Protocol = Literal["LL", "LL128", "Simple"]
Architecture = Literal["volta", "ampere", "hopper", "blackwell"]

COLLECTIVES: tuple[Collective, ...] = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")
ALGORITHMS: tuple[Algorithm, ...] = ("ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain", "pat")
EXCHANGES: tuple[Exchange, ...] = ("all_to_all", "send")
PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")

US = 1e-6
GB = 1e9

_Latencies = tuple[float, float, float]  # us: LL, LL128, Simple
_ByNodes = tuple[float, float, float]  # GB/s: 1 node, 2 nodes, more


@dataclass(frozen=True, slots=True)
class TuningTables:
    """Constants of one version of NCCL's tuner, in microseconds and GB/s as in NCCL's source code.

    ``base``: per algorithm; ``hop``: per link and algorithm (what one step over that link takes); the others by GPU
    generation. ``nvls_share``, of versions that count NVLink SHARP so: what an all-reduce gets of its channels.
    """

    base: Mapping[str, _Latencies]
    hop: Mapping[tuple[str, str], _Latencies]
    ll_cap: Mapping[str, _ByNodes]
    ring_ll128_cap: Mapping[str, _ByNodes]
    tree_ll128_cap: Mapping[str, _ByNodes]
    tree_cap: Mapping[str, _ByNodes]
    nvls_tree_cap: Mapping[str, _ByNodes] = field(default_factory=dict)
    nvls_efficiency: Mapping[str, float] = field(default_factory=dict)
    nvls_share: Mapping[str, float] = field(default_factory=dict)


def _read_tables() -> dict[str, dict[str, dict[Any, Any]]]:
    """Read the tuner's constants from ``tables.csv``: {version: {table: {row: values}}}."""
    found: dict[str, dict[str, dict[Any, Any]]] = {}
    with Path(__file__).with_name("tables.csv").open(encoding="utf-8", newline="") as file:
        for version, table, row, *written in list(csv.reader(line for line in file if line[0] != "#"))[1:]:
            values = tuple(float(value) for value in written if value)
            key = tuple(row.split()) if table == "hop" else row
            found.setdefault(version, {}).setdefault(table, {})[key] = values if len(values) > 1 else values[0]
    return found


_FOUND = _read_tables()
# What the bandwidth of a tree all-reduce is multiplied with, by protocol and size.
TREE_CORRECTION: Mapping[str, tuple[float, ...]] = MappingProxyType(
    dict(zip(PROTOCOLS, zip(*_FOUND.pop("any")["tree_correction"].values(), strict=True), strict=True))
)
LATEST = "2.30.7"
TABLES: Mapping[str, TuningTables] = MappingProxyType(
    {version: TuningTables(**tables) for version, tables in _FOUND.items()}
)

NET_OVERHEAD = MappingProxyType({"intel": 1.0, "amd": 2.0, "other": 1.0})  # us a step, three times that for Simple

# What one channel's buffer holds, B (NVIDIA/nccl 5067397 src/init.cc, src/include/device.h): 8 steps of each protocol.
BUFFER: Mapping[str, float] = MappingProxyType({"LL": 512.0 * 2**10, "LL128": 4_915_200.0, "Simple": 4.0 * 2**20})
