"""What a ring all-reduce over the whole cluster reaches, without playing it.

Exact for large messages, and quick: the rings of all GPUs are laid as NCCL would lay them (``traffic.group_rings``),
the flows of one round are counted on every link, and the most loaded link sets the rate of all
(``fairness.solo_rate``).  The closed form: 2 (N - 1) rounds of S / (N channels) at that rate, so busbw = channels x
rate.  What happens in one machine of each kind happens in all, so hops are routed there, and elsewhere only those that
go beyond a leaf, where flows of different machines meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from simcluster.collectives.description import Hop
from simcluster.studies.bench.report import RingReport
from simcluster.topology.cluster import Cluster
from simcluster.traffic.fairness import solo_rate
from simcluster.traffic.traffic import group_rings, hop_spread, usage_of


def ring_all_reduce(
    cluster: Cluster, classes: Sequence[int], leaf_of: Sequence[int], label: Mapping[str, str]
) -> RingReport | None:
    """Rings over all GPUs; None for a single one.

    ``classes`` and ``leaf_of`` number the GPUs' kinds of place and the leaves that they are linked to; ``label`` is
    what nodes are called.
    """
    gpus = range(cluster.num_gpus)
    if len(gpus) < 2:
        return None
    rings = group_rings(cluster, gpus)
    host = np.array(cluster.host_of)
    example = np.zeros(host.max() + 1, dtype=bool)
    example[_examples(cluster.host_of, classes)] = True
    leaf = np.array(leaf_of)
    spreads = []
    for channel, ring in enumerate(rings):
        order, relays = np.array(ring.order), np.array(ring.relays)
        following = np.roll(order, -1)
        exits = np.where(relays < 0, order, relays)
        beyond = (host[order] != host[following]) & (leaf[exits] != leaf[following])
        wanted = np.flatnonzero(beyond | example[host[order]] | example[host[following]])
        for source, target, relay in zip(*(part[wanted].tolist() for part in (order, following, relays)), strict=True):
            spreads.append(hop_spread(cluster, gpus, Hop(source, target, 1.0, relay, channel)))
    usage = usage_of((1.0, spread) for spread in spreads)
    flows = dict(usage)
    rate = solo_rate(usage, cluster.capacity)  # type: ignore[arg-type]  # an array is indexed as a sequence is
    tight = min(flows, key=lambda link: (cluster.capacity[link] / flows[link], link))
    a, b = cluster.links[tight]
    busbw = len(rings) * float(rate)
    return RingReport(busbw=busbw, channels=len(rings), rate=float(rate), limit=f"{label[a]} - {label[b]}")


def _examples(host_of: Sequence[int], classes: Sequence[int]) -> list[int]:
    """The first machine of every kind."""
    kinds: dict[int, list[int]] = {}
    for host, of_gpu in zip(host_of, classes, strict=True):
        kinds.setdefault(host, []).append(of_gpu)
    first: dict[tuple[int, ...], int] = {}
    for host, of_host in kinds.items():
        first.setdefault(tuple(of_host), host)
    return list(first.values())
