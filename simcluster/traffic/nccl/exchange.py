"""Time of NCCL's point-to-point operations: single sends, and grouped ones such as an all-to-all.

The tuner knows none of this: there is no algorithm to choose. All sends and receives of a group are one kernel. Each
takes some channels of a pool, every channel serves up to eight peers at a time, and short messages use LL. Bytes are
passed on in chunks of 512 KiB over NVLink and of 128 KiB between nodes, where a thread of the host posts those of every
peer. Source: NVIDIA/nccl v2.30 src/enqueue.cc (scheduleP2pTasksToPlan, addP2pToPlan), src/graph/paths.cc
(ncclTopoComputeP2pChannels), src/init.cc (chunk sizes). Pure.
"""

from __future__ import annotations

import math
from typing import Literal

from simcluster.traffic.nccl.constants import EXCHANGES, NET_OVERHEAD, US, Exchange
from simcluster.traffic.nccl.platforms import Platform
from simcluster.traffic.nccl.tuner_query import Prediction, TunerQuery, check_known_word, check_size

KIB = 2.0**10
CHUNK = 512 * KIB
CHUNK_BETWEEN_NODES = 128 * KIB
LL_MOST = 16 * KIB  # B of a message for each channel that it may have (NCCL_P2P_LL_THRESHOLD)
CHANNELS_BETWEEN_NODES = 2  # a peer (NCCL_NCHANNELS_PER_NET_PEER)
PEERS_AT_ONCE = 8  # a channel (NCCL_MAX_DEV_WORK_P2P_PER_BATCH)
LL_PART = 0.5  # half of the bytes are flags


def predict_exchange(kind: Exchange, *, nodes: int, gpus_per_node: int, size: float, platform: Platform) -> Prediction:
    """Predict an all-to-all with ``size`` B in each rank's send buffer, or one send of ``size`` B between two ranks.

    Raises InputError for an unknown word, and a size or group that cannot be.
    """
    check_known_word("exchange", kind, EXCHANGES)
    check_size(size)
    case = TunerQuery("all_gather", "ring", "Simple", nodes, gpus_per_node, platform.with_newest_tables)
    inside, outside = (gpus_per_node - 1, (nodes - 1) * gpus_per_node) if kind == "all_to_all" else (1, nodes - 1)
    if kind == "send" and nodes > 1:
        inside = 0
    message = size / case.ranks if kind == "all_to_all" else size
    pool, most, least = _count_channels(case)
    protocol: Literal["LL", "Simple"] = "LL" if message <= most * LL_MOST else "Simple"
    fitted = case.platform.effective
    port, network = _port_and_network_rates(case, protocol, kind)
    moving = max(message * inside / port, message * outside / network if outside else 0.0) / fitted.achieved
    if protocol == "Simple":
        chunk = CHUNK if nodes == 1 else CHUNK_BETWEEN_NODES
        moving += (inside + outside) * min(message, least * chunk) / (fitted.achieved * port)
    issue, start = fitted.launch, fitted.start * min(pool, inside * least) * (nodes == 1)
    latency = issue + start + US * _exchange_latency(case, protocol, outside, (inside + outside) * least / pool)
    return Prediction(kind, "direct", protocol, case.ranks, float(size), latency, size / moving, issue)


def _count_channels(case: TunerQuery) -> tuple[int, int, int]:
    """Return the number of channels in the pool, and the most and fewest channels that a message can use."""
    pool = 2 ** math.ceil(math.log2(2 * case.platform.one.ring.channels))
    most = pool if case.nodes == 1 else min(pool, CHANNELS_BETWEEN_NODES)
    least = most
    while least * case.ranks > pool and least > 1:
        least //= 2
    return pool, most, least


def _port_and_network_rates(case: TunerQuery, protocol: str, kind: Exchange) -> tuple[float, float]:
    """Return the rate (B/s) of a GPU's NVLink or PCIe port, and of its share of the network."""
    ring = case.platform.one.ring
    port, network = ring.channels * ring.intra, 0.0
    if case.nodes > 1:
        graph = case.channel_graph
        each = max(graph.wire, graph.inter)
        network = each * (CHANNELS_BETWEEN_NODES if kind == "send" else graph.channels / case.gpus_per_node)
    if protocol == "LL":
        cap = case.platform.tables.ll_cap[case.platform.architecture][0] * 1e9
        port, network = min(LL_PART * port, cap), LL_PART * network
    return port, network


def _exchange_latency(case: TunerQuery, protocol: Literal["LL", "Simple"], remote: int, peers: float) -> float:
    """Return the latency (us): kernel base time, hop time per batch of peers, and host time per remote peer."""
    column = {"LL": 0, "Simple": 2}[protocol]
    tables, link = case.platform.tables, "net" if case.nodes > 1 else case.platform.link
    batches = max(1, math.ceil(peers / PEERS_AT_ONCE))
    posts = NET_OVERHEAD[case.platform.cpu] * remote
    return tables.base["ring"][column] + batches * tables.hop[link, "ring"][column] + posts
