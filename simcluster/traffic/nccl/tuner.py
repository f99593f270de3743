"""Formulas of NCCL's tuner: latency and bandwidth of a collective, and chunk sizes.

    seconds = latency + size / bandwidth

Source: NVIDIA/nccl 5067397 (v2.30.7) src/graph/tuning.cc. The tuner knows no contention, no slow link, no chunks: the
flow network adds the first two, ``simcluster.traffic.nccl.predictor`` the third. Pure.
"""

from __future__ import annotations

import math
from typing import assert_never

from simcluster.base.errors import InputError
from simcluster.traffic.nccl.constants import BUFFER, GB, NET_OVERHEAD, PROTOCOLS, TREE_CORRECTION, US
from simcluster.traffic.nccl.tuner_query import Prediction, TunerQuery, check_size, explain_unavailable

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

KIB = 2.0**10
STEP = 512 * KIB  # of the eight steps of a channel's Simple buffer of 4 MiB
LL128_CHUNK = 4_915_200 / 8 * 15 / 16  # 120 of 128 bytes are data
TREE_LL128_CHUNKS = ((64, 128 * KIB), (16, 32 * KIB))
"""A tree's chunk is halved down to this size while a channel has fewer chunks per step than the first number."""

NVLS_CHUNK = 128 * KIB
NVLS_CHUNKS = ((64, 128 * KIB, 64 * KIB), (8, 64 * KIB, 32 * KIB), (2, 32 * KIB, 16 * KIB))
NVLS_TREE_CHUNKS = ((4, 128 * KIB, 64 * KIB), (1, 64 * KIB, 32 * KIB))
"""(loops, chunk, smaller chunk): a call of fewer loops of ``chunk`` uses the smaller chunk."""
NVLS_TREE_MOST_FAR = 64 * KIB  # between four nodes and more
NVLS_FILL = 2.0  # loops: data is gathered, reduced and scattered by three groups of warps, each a loop behind the last
NVLS_MOST_HEADS = 32

_BYTES_PER_CHANNEL = {"LL": 512 * 8.0, "LL128": 640 * 8.0, "Simple": 512 * 64.0}
"""Bytes per channel (threads x bytes per thread) from which a call uses one more channel."""


def count_channels(case: TunerQuery) -> int:
    """Return the number of channels of a large call; rings and trees use twice those of NCCL's graph search."""
    if case.algorithm not in ("nvls", "nvls_tree"):
        return 2 * case.channel_graph.channels
    if case.platform.architecture != "blackwell":
        return 16
    return 24 if case.nodes == 1 else 32


def count_engaged_channels(case: TunerQuery, size: float) -> int:
    """Return the number of channels that a call of ``size`` bytes uses."""
    most = count_channels(case)
    if case.algorithm not in ("ring", "tree"):
        return most
    each = _BYTES_PER_CHANNEL[case.protocol]
    if case.algorithm == "ring" and case.protocol == "LL":
        each *= case.ranks
    return max(1, min(most, math.ceil(size / each)))


def pipeline_fill_seconds(case: TunerQuery, size: float, rate: float) -> float:
    """Return the time (s) until a call's pipeline is full, if the call moves ``rate`` of its bytes per second.

    A ring: chunks grow with the call until every channel's buffer is in use; what they then cost is a time of the
    generation (``fill``) and no bytes over a rate: on B200 it is what it is on A100. A tree between nodes: one chunk
    per hop, since the network takes whole chunks. NVLink SHARP: two loops, and never more than the call's time.
    """
    if case.algorithm in ("nvls", "nvls_tree"):
        return NVLS_FILL * min(size / 2, nvls_loop_bytes(case, size)) / rate
    if case.algorithm == "ring" and case.protocol == "Simple":
        return case.platform.effective.fill * size / (size + case.channel_graph.channels * BUFFER["Simple"])
    if case.algorithm == "tree" and case.protocol != "LL":
        hops = int(math.log2(case.nodes))
        return hops * min(size, count_channels(case) * tree_chunk_bytes(case, size)) / rate
    return 0.0


def tree_chunk_bytes(case: TunerQuery, size: float) -> float:
    """Return a tree's chunk size (bytes); with LL128 it is halved for short calls."""
    if case.protocol != "LL128":
        return STEP
    chunk, count = LL128_CHUNK, count_channels(case)
    steps = 1 + int(math.log2(case.nodes)) + 0.1 * case.gpus_per_node
    for enough, least in TREE_LL128_CHUNKS:
        while size / (count * chunk) < steps * enough / case.gpus_per_node and chunk > least:
            chunk /= 2
    return chunk


def nvls_loop_bytes(case: TunerQuery, size: float) -> float:
    """Return the bytes that NVLink SHARP moves in one loop over all channels and GPUs of the NVSwitch."""
    together = count_channels(case) * min(case.gpus_per_node, NVLS_MOST_HEADS)
    chunk = NVLS_CHUNK
    if case.algorithm == "nvls_tree" and case.nodes >= 4:
        chunk = NVLS_TREE_MOST_FAR
    for loops, above, below in NVLS_CHUNKS if case.algorithm == "nvls" else NVLS_TREE_CHUNKS:
        if chunk == above and size < loops * together * chunk:
            chunk = below
    return together * chunk


def count_extra_loops(case: TunerQuery, size: float) -> float:
    """Return how many more loops NVLink SHARP makes in a node than with its largest chunk size."""
    if case.algorithm != "nvls" or case.nodes > 1:
        return 0.0
    loop = nvls_loop_bytes(case, size)
    largest = count_channels(case) * min(case.gpus_per_node, NVLS_MOST_HEADS) * NVLS_CHUNK
    return size / loop - size / largest


# --- bandwidth ------------------------------------------------------------------------------------------------------


def tuner_bandwidth(case: TunerQuery) -> float:
    """Return the tuner's algorithm bandwidth (B/s) for large sizes, before its correction of trees by size."""
    why = explain_unavailable(case)
    if why:
        raise InputError(f"NCCL does not run {case.collective} by {case.algorithm} with {case.protocol} here: {why}")
    match case.algorithm:
        case "ring":
            rate = _ring_bandwidth(case)
        case "tree":
            rate = _tree_bandwidth(case)
        case "nvls" | "nvls_tree":
            rate = _nvls_bandwidth(case)
        case "collnet_direct" | "collnet_chain":
            rate = 0.5 * _bus_bandwidth(case)
        case "pat":
            rate = PAT_PART * _bus_bandwidth(case)
        case _:
            assert_never(case.algorithm)
    return GB * rate


def _bus_bandwidth(case: TunerQuery) -> float:
    """Return the total bandwidth (GB/s) of all channels: intra-node for up to 2 nodes, inter-node for more."""
    graph = case.channel_graph
    per_channel = graph.intra if case.nodes <= 2 or case.algorithm.startswith("collnet") else graph.inter
    return min(graph.channels * per_channel, _node_bandwidth_limit(case)) / GB


def _node_bandwidth_limit(case: TunerQuery) -> float:
    """Return the bandwidth limit (B/s) that NVLink inside a node sets for all channels together.

    Of a channel's g hops in a node of g GPUs g - 1 go over the NVLink of a GPU, which all channels share.
    """
    each, ring = case.gpus_per_node, case.platform.one.ring
    return math.inf if case.nodes == 1 or each == 1 else ring.channels * ring.intra * each / (each - 1)


def _ll_bandwidth_cap(case: TunerQuery) -> float:
    """Return the bandwidth cap (GB/s) of protocol LL: by GPU generation in one node, by CPU between nodes."""
    between = "ampere" if case.platform.cpu == "amd" else "volta"
    return case.platform.tables.ll_cap[case.platform.architecture if case.nodes == 1 else between][case.table_column]


def _count_steps(case: TunerQuery) -> int:
    ranks = case.ranks
    return {"all_reduce": 2 * (ranks - 1), "reduce_scatter": ranks - 1, "all_gather": ranks - 1}.get(
        case.collective, ranks
    )


def _ring_bandwidth(case: TunerQuery) -> float:
    bus = _bus_bandwidth(case)
    if case.protocol == "LL":
        bus = min(_ll_bandwidth_cap(case), RING_LL_PART * bus)
    elif case.protocol == "LL128":
        cap = case.platform.tables.ring_ll128_cap[case.platform.architecture][case.table_column]
        bus = min(RING_LL128_PART * bus, case.channel_graph.channels * cap)
    elif case.protocol != "Simple":
        assert_never(case.protocol)
    return bus * case.ranks / _count_steps(case)


def _tree_bandwidth(case: TunerQuery) -> float:
    tables, architecture, graph = case.platform.tables, case.platform.architecture, case.channel_graph
    bus = min(TREE_PART * _bus_bandwidth(case), graph.channels * tables.tree_cap[architecture][case.table_column])
    if case.protocol == "LL":
        bus = min(bus / TREE_LL_DIVISOR, _ll_bandwidth_cap(case))
    elif case.protocol == "LL128":
        part = TREE_LL128_PART_ONE_NODE if case.nodes == 1 else TREE_LL128_PART
        bus = min(bus * part, graph.channels * tables.tree_ll128_cap[architecture][case.table_column])
    elif case.protocol != "Simple":
        assert_never(case.protocol)
    return 0.5 * bus * (PLAIN_TREE_PART if graph.plain_tree else 1.0)


def _nvls_bandwidth(case: TunerQuery) -> float:
    tables, architecture, graph = case.platform.tables, case.platform.architecture, case.channel_graph
    if tables.nvls_share:
        return _nvls_bandwidth_by_share(case, tables.nvls_share["any"])
    channel = graph.intra / GB * tables.nvls_efficiency[architecture] * (graph.channels - 1) / graph.channels
    everywhere = case.collective == "all_reduce"  # its reduction and its multicast are pipelined
    channel *= 2.0 if everywhere else (case.gpus_per_node - 1) / case.gpus_per_node
    if case.nodes > 1:
        channel = min(channel, graph.inter / GB * (2.0 if case.algorithm == "nvls_tree" and case.nodes == 2 else 1.0))
    if case.algorithm == "nvls_tree":
        channel = min(channel, tables.nvls_tree_cap[architecture][case.table_column])
    return channel * graph.channels * (case.ranks / _count_steps(case) if everywhere else 1.0)


def _nvls_bandwidth_by_share(case: TunerQuery, share: float) -> float:
    graph = case.channel_graph
    if case.collective != "all_reduce":
        part = (case.gpus_per_node - 1) / case.gpus_per_node
        return min(graph.intra * part, graph.inter * 0.9) / GB * graph.channels
    far = case.algorithm == "nvls_tree" and case.nodes > 2
    return min(graph.intra, graph.inter / 2 if far else graph.inter) / GB * graph.channels * share


# --- latency --------------------------------------------------------------------------------------------------------


def tuner_latency(case: TunerQuery) -> float:
    """Return the latency (s) from the tuner's tables, without the penalty for rings (see ``tuner_prediction``)."""
    base = case.platform.tables.base.get(case.algorithm, (0.0, 0.0, 0.0))[PROTOCOLS.index(case.protocol)]
    others, depth = case.gpus_per_node - 1, int(math.log2(case.nodes))
    match case.algorithm:
        case "ring":
            steps = _ring_latency(case)
        case "tree":
            steps = 2.0 * (others * case.step_latency(False) + depth * case.step_latency(True))
        case "nvls":
            steps = case.step_latency(False) + (case.step_latency(True) if case.nodes > 1 else 0.0)
        case "nvls_tree":
            steps = case.step_latency(False) + 2.0 * depth * case.step_latency(True)
        case "collnet_direct":
            inside = min(1, others) * case.step_latency(False) + others * COLLNET_DIRECT_RANK
            steps = 2.0 * inside + case.step_latency(True)
        case "collnet_chain":
            steps = 2.0 * others * case.step_latency(False) + case.step_latency(True)
        case "pat":
            steps = depth * case.step_latency(True) / PAT_INTER_DIVISOR + case.ranks * PAT_RANK
        case _:
            assert_never(case.algorithm)
    return US * (base + steps)


def _ring_latency(case: TunerQuery) -> float:
    """Return a ring's latency (us): each step costs at least the host's network overhead.

    The sources at hand give no latency of broadcast and reduce: a chain has N - 1 steps, counted as for all-gather.
    """
    overhead = 0.0
    if case.nodes > 1:
        overhead = NET_OVERHEAD[case.platform.cpu] * (3.0 if case.protocol == "Simple" else 1.0)
    passes = 2 if case.collective == "all_reduce" else 1
    between = passes * (case.nodes - 1)
    inside = passes * (case.ranks - 1) - between
    return inside * max(case.step_latency(False), overhead) + between * case.step_latency(True)


# --- time -----------------------------------------------------------------------------------------------------------


def tuner_prediction(case: TunerQuery, size: float) -> Prediction:
    """Predict the time that NCCL's tuner compares, with its ring latency penalty and its tree bandwidth correction."""
    check_size(size)
    rate, delay = tuner_bandwidth(case), tuner_latency(case)
    if case.algorithm == "tree":
        row = math.frexp(size / 64)[1] - 1  # floor(log2(size / 64 B)), exactly
        if 0 <= row < len(TREE_CORRECTION[case.protocol]):
            rate *= TREE_CORRECTION[case.protocol][row]
    between = case.algorithm == "ring" and case.protocol == "Simple" and case.nodes > 1
    if between and case.collective == "all_reduce" and size / (case.channel_graph.channels * case.ranks) >= 64:
        delay *= RING_SIMPLE_PENALTY_OLD if case.platform.architecture == "volta" else RING_SIMPLE_PENALTY
    return Prediction(case.collective, case.algorithm, case.protocol, case.ranks, float(size), delay, rate)
