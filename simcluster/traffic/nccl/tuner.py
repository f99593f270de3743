"""NCCL's own estimate of a collective: the formulas of its tuner, re-expressed.

    seconds = latency + size / bandwidth

Source: NVIDIA/nccl 5067397 (v2.30.7) src/graph/tuning.cc.  The tuner knows no contention, no slow link, no chunks:
the flow network adds the first two, ``simcluster.traffic.nccl.predictor`` the third.  Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import assert_never

from simcluster.base.errors import InputError
from simcluster.traffic.nccl.case import Case, Prediction, check_size, unavailable
from simcluster.traffic.nccl.constants import (
    COLLNET_DIRECT_RANK,
    GB,
    NET_OVERHEAD,
    PAT_INTER_DIVISOR,
    PAT_PART,
    PAT_RANK,
    PLAIN_TREE_PART,
    PROTOCOLS,
    RING_LL128_PART,
    RING_LL_PART,
    RING_SIMPLE_PENALTY,
    RING_SIMPLE_PENALTY_OLD,
    TREE_CORRECTION,
    TREE_LL128_PART,
    TREE_LL128_PART_ONE_NODE,
    TREE_LL_DIVISOR,
    TREE_PART,
    US,
)

# --- bandwidth ------------------------------------------------------------------------------------------------------


def bandwidth(case: Case) -> float:
    """The tuner's algorithm bandwidth for large sizes, B/s (before the size-dependent correction of trees)."""
    why = unavailable(case)
    if why:
        raise InputError(f"NCCL does not run {case.collective} by {case.algorithm} with {case.protocol} here: {why}")
    return GB * _BANDWIDTH[case.algorithm](case)


def _bus(case: Case) -> float:
    """GB/s over all channels: what a channel is counted for inside the node up to 2 nodes, between nodes from there."""
    graph = case.graph
    per_channel = graph.intra if case.nodes <= 2 or case.algorithm.startswith("collnet") else graph.inter
    return min(graph.channels * per_channel, _through_node(case)) / GB


def _through_node(case: Case) -> float:
    """Return the most B/s that all channels bring through a node, however many NICs it has.

    Of a channel's g hops in a node of g GPUs g - 1 go over the NVLink of a GPU, which all channels share.
    """
    each, ring = case.gpus_per_node, case.platform.one.ring
    return math.inf if case.nodes == 1 or each == 1 else ring.channels * ring.intra * each / (each - 1)


def _ll_cap(case: Case) -> float:
    """GB/s: one node by GPU generation; between nodes by CPU, AMD has the row of Ampere, others that of Volta."""
    between = "ampere" if case.platform.cpu == "amd" else "volta"
    return case.platform.tables.ll_cap[case.platform.architecture if case.nodes == 1 else between][case.column]


def _steps(case: Case) -> int:
    ranks = case.ranks
    return {"all_reduce": 2 * (ranks - 1), "reduce_scatter": ranks - 1, "all_gather": ranks - 1}.get(
        case.collective, ranks
    )


def _ring_bandwidth(case: Case) -> float:
    bus = _bus(case)
    if case.protocol == "LL":
        bus = min(_ll_cap(case), RING_LL_PART * bus)
    elif case.protocol == "LL128":
        cap = case.platform.tables.ring_ll128_cap[case.platform.architecture][case.column]
        bus = min(RING_LL128_PART * bus, case.graph.channels * cap)
    elif case.protocol != "Simple":
        assert_never(case.protocol)
    return bus * case.ranks / _steps(case)


def _tree_bandwidth(case: Case) -> float:
    tables, architecture, graph = case.platform.tables, case.platform.architecture, case.graph
    bus = min(TREE_PART * _bus(case), graph.channels * tables.tree_cap[architecture][case.column])
    if case.protocol == "LL":
        bus = min(bus / TREE_LL_DIVISOR, _ll_cap(case))
    elif case.protocol == "LL128":
        part = TREE_LL128_PART_ONE_NODE if case.nodes == 1 else TREE_LL128_PART
        bus = min(bus * part, graph.channels * tables.tree_ll128_cap[architecture][case.column])
    elif case.protocol != "Simple":
        assert_never(case.protocol)
    return 0.5 * bus * (PLAIN_TREE_PART if graph.plain_tree else 1.0)


def _nvls_bandwidth(case: Case) -> float:
    tables, architecture, graph = case.platform.tables, case.platform.architecture, case.graph
    if tables.nvls_share:
        return _nvls_bandwidth_by_share(case, tables.nvls_share["any"])
    channel = graph.intra / GB * tables.nvls_efficiency[architecture] * (graph.channels - 1) / graph.channels
    everywhere = case.collective == "all_reduce"  # its reduction and its multicast are pipelined
    channel *= 2.0 if everywhere else (case.gpus_per_node - 1) / case.gpus_per_node
    if case.nodes > 1:
        channel = min(channel, graph.inter / GB * (2.0 if case.algorithm == "nvls_tree" and case.nodes == 2 else 1.0))
    if case.algorithm == "nvls_tree":
        channel = min(channel, tables.nvls_tree_cap[architecture][case.column])
    return channel * graph.channels * (case.ranks / _steps(case) if everywhere else 1.0)


def _nvls_bandwidth_by_share(case: Case, share: float) -> float:
    """As versions up to 2.27 count it."""
    graph = case.graph
    if case.collective != "all_reduce":
        part = (case.gpus_per_node - 1) / case.gpus_per_node
        return min(graph.intra * part, graph.inter * 0.9) / GB * graph.channels
    far = case.algorithm == "nvls_tree" and case.nodes > 2
    return min(graph.intra, graph.inter / 2 if far else graph.inter) / GB * graph.channels * share


_BANDWIDTH: dict[str, Callable[[Case], float]] = {
    "ring": _ring_bandwidth,
    "tree": _tree_bandwidth,
    "nvls": _nvls_bandwidth,
    "nvls_tree": _nvls_bandwidth,
    "collnet_direct": lambda case: 0.5 * _bus(case),
    "collnet_chain": lambda case: 0.5 * _bus(case),
    "pat": lambda case: PAT_PART * _bus(case),
}


# --- latency --------------------------------------------------------------------------------------------------------


def latency(case: Case) -> float:
    """The tuner's latency, s, as its table holds it: before the penalty that ``tuner_prediction`` puts on rings."""
    base = case.platform.tables.base.get(case.algorithm, (0.0, 0.0, 0.0))[PROTOCOLS.index(case.protocol)]
    return US * (base + _LATENCY[case.algorithm](case))


def _ring_latency(case: Case) -> float:
    """A step costs at least the host's work for the network, if there is one.

    The sources at hand give no latency of broadcast and reduce: a chain has N - 1 steps, counted as for all-gather.
    """
    overhead = 0.0
    if case.nodes > 1:
        overhead = NET_OVERHEAD[case.platform.cpu] * (3.0 if case.protocol == "Simple" else 1.0)
    passes = 2 if case.collective == "all_reduce" else 1
    between = passes * (case.nodes - 1)
    inside = passes * (case.ranks - 1) - between
    return inside * max(case.hop(False), overhead) + between * case.hop(True)


def _depth(case: Case) -> int:
    return int(math.log2(case.nodes))


def _tree_latency(case: Case) -> float:
    return 2.0 * ((case.gpus_per_node - 1) * case.hop(False) + _depth(case) * case.hop(True))


def _nvls_latency(case: Case) -> float:
    return case.hop(False) + (case.hop(True) if case.nodes > 1 else 0.0)


def _nvls_tree_latency(case: Case) -> float:
    return case.hop(False) + 2.0 * _depth(case) * case.hop(True)


def _collnet_direct_latency(case: Case) -> float:
    others = case.gpus_per_node - 1
    return 2.0 * (min(1, others) * case.hop(False) + others * COLLNET_DIRECT_RANK) + case.hop(True)


def _collnet_chain_latency(case: Case) -> float:
    return 2.0 * (case.gpus_per_node - 1) * case.hop(False) + case.hop(True)


def _pat_latency(case: Case) -> float:
    return _depth(case) * case.hop(True) / PAT_INTER_DIVISOR + case.ranks * PAT_RANK


_LATENCY: dict[str, Callable[[Case], float]] = {
    "ring": _ring_latency,
    "tree": _tree_latency,
    "nvls": _nvls_latency,
    "nvls_tree": _nvls_tree_latency,
    "collnet_direct": _collnet_direct_latency,
    "collnet_chain": _collnet_chain_latency,
    "pat": _pat_latency,
}


# --- time -----------------------------------------------------------------------------------------------------------


def tuner_prediction(case: Case, size: float) -> Prediction:
    """What the tuner compares when it chooses: latency with its penalty, bandwidth with the correction of trees."""
    check_size(size)
    rate, delay = bandwidth(case), latency(case)
    if case.algorithm == "tree":
        row = math.frexp(size / 64)[1] - 1  # floor(log2(size / 64 B)), exactly
        if 0 <= row < len(TREE_CORRECTION[case.protocol]):
            rate *= TREE_CORRECTION[case.protocol][row]
    between = case.algorithm == "ring" and case.protocol == "Simple" and case.nodes > 1
    if between and case.collective == "all_reduce" and size / (case.graph.channels * case.ranks) >= 64:
        delay *= RING_SIMPLE_PENALTY_OLD if case.platform.architecture == "volta" else RING_SIMPLE_PENALTY
    return Prediction(case.collective, case.algorithm, case.protocol, case.ranks, float(size), delay, rate)
