"""NVLink SHARP (NVLS) collectives: the NVSwitch sums the GPUs' data and multicasts the result.

n GPUs on one NVSwitch. Of an all-reduce every GPU and direction carries S (1 + 1/n): out its data and its n-th of the
sum, in its n-th of the sum and the whole of it. T = two ways to the switch and back + S (1 + 1/n) / B; a reduce-scatter
or all-gather takes S / B. Multimem loads and stores reach B = 309 GB/s of the 450 of an H100's NVLink (0.687), from
algbw 258, 265, 270, 273 GB/s at n = 5..8 (NVIDIA/nccl issue 1455; MODELLING.md C.4).
"""

from __future__ import annotations

from collections.abc import Sequence

from simcluster.collectives.description import SWITCH, Hop, Phase
from simcluster.collectives.group import Group

MULTIMEM = 309.0 / 370.8
"""What multimem operations reach of the rate of ring kernels on the same NVLink: 309 of an H100's 450 GB/s (NVIDIA/nccl
issue 1455), not the 370.8 that a link of topologies carries (0.824 of its line rate, what rings measure)."""


def reduce_scatter(group: Group) -> Sequence[Phase]:
    """Return the reduce-scatter: each of the n ranks reads 1/n of the sum from the NVSwitch."""
    ranks = group.num_ranks
    collected = tuple(Hop(position, SWITCH, 1.0, count=ranks) for position in range(ranks))
    handed = tuple(Hop(SWITCH, position, 1 / ranks, chunk=position) for position in range(ranks))
    return _make_pipeline((collected, True), (handed, False), chunks=ranks)


def all_gather(group: Group) -> Sequence[Phase]:
    """Return the all-gather: each of the n ranks writes its 1/n to the NVSwitch, which sends it to all ranks."""
    ranks = group.num_ranks
    written = tuple(Hop(position, SWITCH, 1 / ranks, chunk=position) for position in range(ranks))
    copied = tuple(Hop(SWITCH, position, 1.0, count=ranks) for position in range(ranks))
    return _make_pipeline((written, False), (copied, False), chunks=ranks)


def _make_pipeline(*parts: tuple[Sequence[Hop], bool], chunks: int) -> Sequence[Phase]:
    if chunks == 1:
        return ()
    return tuple(Phase(rounds=1, hops=hops, chunks=chunks, reduces=adds, pipelined=True) for hops, adds in parts)


def unsupported_reason(group: Group) -> str:
    """Return why a group is not supported (its GPUs are not all on one NVSwitch), or "" if it is."""
    lost, switches = group.ranks_per_nvswitch
    if group.num_ranks > 1 and (len(switches) > 1 or lost):
        where = "are on several nodes" if len(group.ranks_per_node) > 1 else "have no NVSwitch"
        return (
            f"nvls needs all GPUs of the group on one NVSwitch, and these {where}: use algorithm ring, or only GPUs of "
            "one NVLink node"
        )
    return ""
