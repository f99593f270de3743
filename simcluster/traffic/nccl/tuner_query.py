"""Query to NCCL's tuner (collective, algorithm, protocol, nodes and GPUs), and the predicted time.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from simcluster.base.errors import InputError
from simcluster.base.units import is_number
from simcluster.documents.diagnostics import did_you_mean, join_or
from simcluster.traffic.nccl.constants import (
    ALGORITHMS,
    COLLECTIVES,
    PROTOCOLS,
    Algorithm,
    Collective,
    Exchange,
    Protocol,
)
from simcluster.traffic.nccl.platforms import ChannelGraph, Platform


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted time of a collective by one algorithm and protocol: ``latency`` + ``size`` / ``bandwidth``.

    ``latency`` in s does not depend on what else is on the links; ``bandwidth`` in B/s is the algorithm bandwidth that
    the transfer itself runs at, at this size. So the flow network can take the first as a delay and the second as a
    bound on the rates of the flows. ``issue``: the part of the latency that is the host's, which a stopwatch around a
    single call sees and a training step, whose kernels are launched ahead, does not.
    """

    collective: Collective | Exchange
    algorithm: Algorithm | Literal["direct"]
    protocol: Protocol
    ranks: int
    size: float
    latency: float
    bandwidth: float
    issue: float = 0.0

    @property
    def seconds(self) -> float:
        """Time (s) from launch to the last rank's end."""
        return self.latency + self.size / self.bandwidth

    @property
    def bus_bandwidth(self) -> float:
        """Bus bandwidth (busbw of nccl-tests), B/s: size / seconds x bus factor."""
        return self.size / self.seconds * bus_factor(self.collective, self.ranks)


def bus_factor(collective: Collective | Exchange, ranks: int) -> float:
    """Return the ratio of bus bandwidth to algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md)."""
    factors = {"all_reduce": 2 * (ranks - 1) / ranks}
    factors |= dict.fromkeys(("broadcast", "reduce", "send_recv", "send"), 1.0)
    return factors.get(collective, (ranks - 1) / ranks)


@dataclass(frozen=True, slots=True)
class TunerQuery:
    """Query to NCCL's tuner, without a size; its values are checked on creation.

    Raises InputError for an unknown word, fewer than two ranks, and several nodes of a platform without a network.
    """

    collective: Collective
    algorithm: Algorithm
    protocol: Protocol
    nodes: int
    gpus_per_node: int
    platform: Platform

    def __post_init__(self) -> None:
        check_known_word("collective", self.collective, COLLECTIVES)
        check_known_word("algorithm", self.algorithm, ALGORITHMS)
        check_known_word("protocol", self.protocol, PROTOCOLS)
        check_group(self.nodes, self.gpus_per_node, self.platform)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.nodes * self.gpus_per_node

    @property
    def table_column(self) -> int:
        """Column of the tuner's tables: 0 for one node, 1 for two nodes, 2 for more."""
        return min(self.nodes, 3) - 1

    @property
    def channel_graph(self) -> ChannelGraph:
        """Channels (rings, trees or NVLS) that the algorithm uses."""
        graphs = self.platform.channel_graphs(self.nodes)
        if self.algorithm in ("nvls", "nvls_tree"):
            graph = graphs.nvls or graphs.ring
        else:
            graph = graphs.tree if self.algorithm == "tree" else graphs.ring
        return graph if self.nodes == 1 else graph.for_gpus(self.gpus_per_node, self.platform.gpus_per_node)

    def step_latency(self, between_nodes: bool) -> float:
        """Return the latency (us) of one step inside a node or between nodes."""
        link = "net" if between_nodes else self.platform.link
        return self.platform.tables.hop[link, self.algorithm][PROTOCOLS.index(self.protocol)]


def check_known_word(what: str, word: str, known: Sequence[str]) -> None:
    """Raise InputError unless ``word`` is one of ``known``."""
    if word not in known:
        near = did_you_mean(word, known)
        raise InputError(f"the model of NCCL has no {what} {word!r}{near}; known: {join_or(known)}")


def check_group(nodes: int, gpus_per_node: int, platform: Platform) -> None:
    """Raise InputError unless a group of this many nodes and GPUs per node fits the platform."""
    for what, count in (("nodes", nodes), ("gpus_per_node", gpus_per_node)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InputError(f"{what} must be a whole number from 1, not {count!r}")
    if nodes * gpus_per_node < 2:
        raise InputError("a collective of one rank moves nothing; NCCL needs 2 ranks or more")
    if gpus_per_node > platform.gpus_per_node:
        raise InputError(
            f"gpus_per_node = {gpus_per_node}, but a node of {platform.name} has {platform.gpus_per_node} GPUs; "
            f"use at most {platform.gpus_per_node}"
        )
    platform.channel_graphs(nodes)


def check_size(size: float) -> None:
    """Raise InputError unless ``size`` is a finite number of bytes above zero."""
    if not is_number(size) or size <= 0:
        raise InputError(f"the size of a collective must be a number of bytes above zero, not {size!r}")


def explain_unavailable(case: TunerQuery) -> str:
    """Return why NCCL never runs this combination of collective, algorithm and protocol; "" if it does."""
    platform, nodes, algorithm, protocol = case.platform, case.nodes, case.algorithm, case.protocol
    if algorithm != "ring" and case.collective in ("broadcast", "reduce"):
        return "broadcast and reduce run on rings only"
    if algorithm == "tree":
        return "" if case.collective == "all_reduce" else "trees support only all-reduce"
    if algorithm == "ring":
        return ""
    if protocol != "Simple":
        return f"{algorithm} supports only the Simple protocol"
    if algorithm == "pat":
        return _explain_pat_unavailable(case)
    if algorithm.startswith("collnet"):
        if not platform.collnet:
            return "the network of this platform has no in-network reduction (CollNet, SHARP)"
        return "" if nodes > 1 and case.collective == "all_reduce" else "CollNet supports only all-reduce across nodes"
    if platform.channel_graphs(nodes).nvls is None:
        return "the NVSwitches of this platform cannot multicast and reduce (NVLink SHARP)"
    if case.channel_graph.channels < 2:
        return "NVLink SHARP needs two channels, and the NICs of so few GPUs provide only one"
    if case.gpus_per_node <= 2:
        return "NVLink SHARP gains nothing from 2 GPUs on a switch, and NCCL does not use it there"
    if algorithm == "nvls":
        return (
            "" if nodes == 1 or platform.collnet else "NVLS across nodes needs CollNet; without CollNet, use nvls_tree"
        )
    if nodes == 1:
        return "nvls_tree needs several nodes"
    return "" if case.collective == "all_reduce" else "nvls_tree supports only all-reduce"


def _explain_pat_unavailable(case: TunerQuery) -> str:
    if "pat" not in case.platform.tables.base:
        return f"NCCL {case.platform.version} has no PAT"
    if case.collective not in ("all_gather", "reduce_scatter"):
        return "PAT supports only all-gather and reduce-scatter"
    return "" if case.gpus_per_node == 1 and case.nodes > 1 else "PAT needs several nodes with one GPU each"


def explain_ll128_unavailable(case: TunerQuery) -> str:
    """Return why NCCL disables the LL128 protocol by default in this case; "" if it does not."""
    if case.protocol != "LL128":
        return ""
    if case.platform.link != "nvlink":
        return "LL128 needs NVLink inside the node, because only NVLink delivers 128 B stores whole"
    if case.nodes > 1 and not case.platform.ll128_inter:
        return "LL128 needs GPU and NIC below one PCIe switch"
    return ""
