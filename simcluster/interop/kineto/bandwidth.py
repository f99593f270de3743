"""What collectives of a profiled job took and reached, beside what a cluster's model gives.

Time counts from the last member's arrival: the members before it only wait.  Bus bandwidth as nccl-tests defines it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, cast

from simcluster.base.errors import InputError
from simcluster.collectives import ALGORITHMS
from simcluster.interop.kineto.job import ProfiledJob
from simcluster.traffic.nccl import bus_factor

if TYPE_CHECKING:
    from simcluster.topology import Cluster

_PEER = {"recv": "send"}


@dataclass(frozen=True)
class Reached:
    """Collectives of one kind, group and size: how many in all steps, the median of their seconds from the last
    arrival on and the fastest, and the seconds that the model of a cluster gives (None without one); bus bandwidth of
    the median and of the model's in B/s (NaN where the size is not known)."""

    kind: str
    group: str
    ranks: tuple[int, ...]
    bytes: float
    count: int
    seconds: float
    fastest: float
    modelled: float | None
    bus_bandwidth: float
    modelled_bus_bandwidth: float | None

    def to_dict(self) -> dict[str, Any]:
        """For JSON; None for what is not known."""
        values = asdict(self).items()
        return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in values}


def _bus_bandwidth(kind: str, ranks: int, size: float, seconds: float) -> float:
    kind = _PEER.get(kind, kind)
    known = kind in ALGORITHMS and seconds > 0 and ranks >= 2
    return size * bus_factor(cast(Any, kind), ranks) / seconds if known else math.nan


def reached(job: ProfiledJob, cluster: Cluster | None = None) -> list[Reached]:
    """What collectives with two recorded members or more reached, the costliest first; rank n is GPU n of the cluster.

    Raises InputError where the cluster has fewer GPUs than the job has ranks.
    """
    found: dict[tuple[str, str, tuple[int, ...], float], list[float]] = {}
    for graph in job.steps_of_ranks:
        began, ended = graph.began[:, 0].tolist(), graph.ended[:, 0].tolist()
        for members in graph.groups:
            source = graph.source[members[0]]
            assert source is not None
            assert source.comm is not None
            comm, last = source.comm, max([began[op] for op in members])
            ranks = comm.peer or comm.ranks or tuple(job.ranks[graph.worker[op]] for op in members)
            duration = median([ended[op] for op in members]) - last
            kind = "send" if comm.peer else comm.kind
            found.setdefault((kind, comm.what or comm.group, ranks, comm.bytes), []).append(max(duration, 0.0))
    rows = []
    for (kind, group, ranks, size), taken in found.items():
        seconds, modelled = median(taken), _modelled(kind, ranks, size, cluster)
        bandwidth = _bus_bandwidth(kind, len(ranks), size, seconds)
        at_model = None if modelled is None else _bus_bandwidth(kind, len(ranks), size, modelled)
        count, fastest = len(taken), min(taken)
        rows.append(Reached(kind, group, ranks, size, count, seconds, fastest, modelled, bandwidth, at_model))
    return sorted(rows, key=lambda row: -row.count * row.seconds)


def _modelled(kind: str, ranks: tuple[int, ...], size: float, cluster: Cluster | None) -> float | None:
    if cluster is None or kind not in ALGORITHMS or not size > 0 or len(ranks) < 2:
        return None
    if max(ranks) >= cluster.num_gpus:
        raise InputError(
            f"--cluster: {cluster.name!r} has {cluster.num_gpus} GPUs and a profile is of rank {max(ranks)}; rank n "
            "is taken to be GPU n: give a cluster with more of them"
        )
    from simcluster.studies.bench.collective import (
        collective_times,  # networks: longer to import than a profile to read
    )

    return collective_times(cluster, ranks, kind, size).duration
