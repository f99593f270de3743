"""NCCL's chunks: the channels that a call engages, how large its chunks are, and what its pipeline costs for them.

A call is cut over channels, and what a channel has into loops; in every loop each rank handles one chunk (of NVLink
SHARP: one for each GPU of the switch).  Chunks travel one behind the other, so besides its share of bandwidth a call
pays for filling that pipeline, the more the larger its chunks are.  LL and LL128 hand on every line as it comes and
fill nothing inside a node.  Sizes and rules: NVIDIA/nccl src/enqueue.cc (getAlgoInfo, calcCollChunking),
src/include/collectives.h and device.h, src/transport/nvls.cc, v2.27 to v2.30.  Pure; bytes and seconds.
"""

from __future__ import annotations

import math

from simcluster.traffic.nccl.case import Case
from simcluster.traffic.nccl.constants import BUFFER

KIB = 2.0**10
STEP = 512 * KIB  # of the eight steps of a channel's Simple buffer of 4 MiB
LL128_CHUNK = 4_915_200 / 8 * 15 / 16  # 120 of 128 bytes are data
TREE_LL128_CHUNKS = ((64, 128 * KIB), (16, 32 * KIB))
"""A tree's chunk is halved down to this size while a channel has fewer than so many of them for a step of the tree."""

NVLS_CHUNK = 128 * KIB
NVLS_CHUNKS = ((64, 128 * KIB, 64 * KIB), (8, 64 * KIB, 32 * KIB), (2, 32 * KIB, 16 * KIB))
NVLS_TREE_CHUNKS = ((4, 128 * KIB, 64 * KIB), (1, 64 * KIB, 32 * KIB))
"""Below so many loops of the first chunk the second is taken."""
NVLS_TREE_MOST_FAR = 64 * KIB  # between four nodes and more
NVLS_FILL = 2.0  # loops: data is gathered, reduced and scattered by three groups of warps, each a loop behind the last
NVLS_MOST_HEADS = 32

_BYTES_PER_CHANNEL = {"LL": 512 * 8.0, "LL128": 640 * 8.0, "Simple": 512 * 64.0}
"""Threads of a channel x the bytes that each must have before another channel is engaged."""


def channels(case: Case) -> int:
    """The channels (thread blocks) of a large call.  Rings and trees are laid twice over what the search finds."""
    if case.algorithm not in ("nvls", "nvls_tree"):
        return 2 * case.graph.channels
    if case.platform.architecture != "blackwell":
        return 16
    return 24 if case.nodes == 1 else 32


def engaged(case: Case, size: float) -> int:
    """The channels that a call of this size engages; a ring's LL wants its bytes for every rank."""
    most = channels(case)
    if case.algorithm not in ("ring", "tree"):
        return most
    each = _BYTES_PER_CHANNEL[case.protocol]
    if case.algorithm == "ring" and case.protocol == "LL":
        each *= case.ranks
    return max(1, min(most, math.ceil(size / each)))


def filling(case: Case, size: float, rate: float) -> float:
    """Seconds that the call's pipeline takes to fill, where its data moves at ``rate`` B/s of its size.

    A ring: chunks grow with the call until every channel's buffer is in use; what they then cost is a time of the
    generation (``fill``) and no bytes over a rate: on B200 it is what it is on A100.  A tree between nodes: a chunk a
    hop, since the network takes whole chunks.  NVLink SHARP: two loops, and never more than the call's own time.
    """
    if case.algorithm in ("nvls", "nvls_tree"):
        return NVLS_FILL * min(size / 2, nvls_loop(case, size)) / rate
    if case.algorithm == "ring" and case.protocol == "Simple":
        return case.platform.effective.fill * size / (size + case.graph.channels * BUFFER["Simple"])
    if case.algorithm == "tree" and case.protocol != "LL":
        hops = int(math.log2(case.nodes))
        return hops * min(size, channels(case) * tree_chunk(case, size)) / rate
    return 0.0


def tree_chunk(case: Case, size: float) -> float:
    """The chunk of a tree: LL128 halves it for short calls, so that there are enough of them for its steps."""
    if case.protocol != "LL128":
        return STEP
    chunk, count = LL128_CHUNK, channels(case)
    steps = 1 + int(math.log2(case.nodes)) + 0.1 * case.gpus_per_node
    for enough, least in TREE_LL128_CHUNKS:
        while size / (count * chunk) < steps * enough / case.gpus_per_node and chunk > least:
            chunk /= 2
    return chunk


def nvls_loop(case: Case, size: float) -> float:
    """Bytes of one loop over all channels and GPUs of the switch, by NVLink SHARP."""
    together = channels(case) * min(case.gpus_per_node, NVLS_MOST_HEADS)
    chunk = NVLS_CHUNK
    if case.algorithm == "nvls_tree" and case.nodes >= 4:
        chunk = NVLS_TREE_MOST_FAR
    for loops, above, below in NVLS_CHUNKS if case.algorithm == "nvls" else NVLS_TREE_CHUNKS:
        if chunk == above and size < loops * together * chunk:
            chunk = below
    return together * chunk


def short_loops(case: Case, size: float) -> float:
    """Loops that NVLink SHARP makes in a node beyond those of its largest chunk, which the tuner's bandwidth is of."""
    if case.algorithm != "nvls" or case.nodes > 1:
        return 0.0
    loop = nvls_loop(case, size)
    largest = channels(case) * min(case.gpus_per_node, NVLS_MOST_HEADS) * NVLS_CHUNK
    return size / loop - size / largest
