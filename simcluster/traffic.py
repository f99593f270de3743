"""From a collective's description to what the cluster's links carry.  Pure; imports collectives and fairness types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from simcluster.clock import on_grid
from simcluster.collectives.description import Hop, Phase, Ring
from simcluster.collectives.ring import rings_along
from simcluster.fairness import Usage, solo_rate


class Fabric(Protocol):
    """What traffic needs to know of a cluster: see topology.cluster.Cluster."""

    @property
    def host_of(self) -> Sequence[int]: ...
    def route(self, src: int, dst: int) -> tuple[int, ...]: ...
    def path_latency(self, links: Sequence[int]) -> float: ...
    def uplinks(self, gpu: int) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one activity moves: per flow ``rounds`` times ``round_bytes``; ``usage`` counts its flows on each link.

    ``latency`` (s) is paid in every round.  On links of its own the activity takes
    rounds x (latency + round_bytes / rate), to the bit what the same rounds take one by one.
    """

    usage: Usage
    round_bytes: float
    rounds: int
    latency: float

    @property
    def latency_seconds(self) -> float:
        """All rounds' latency in seconds, on the clock's grid."""
        return self.rounds * on_grid(self.latency)

    def alone_seconds(self, capacity: Sequence[float]) -> float:
        """Duration in seconds with all links to itself, on the clock's grid."""
        return self.latency_seconds + self.rounds * on_grid(self.round_bytes / solo_rate(self.usage, capacity))


@dataclass(frozen=True, slots=True)
class Pattern:
    """A phase of a collective on the cluster, before its size is known.

    ``share`` is the part of the size that one flow carries in a round, ``latency`` (s) what a round pays: the mean over
    the hops, because a chunk crosses every kind of hop on its way around (NCCL's tuner counts the same way).
    """

    usage: Usage
    share: float
    rounds: int
    latency: float

    def traffic(self, size: float) -> Traffic:
        """The activity that moves a collective of ``size`` bytes (nccl-tests' convention: the full buffer)."""
        return Traffic(self.usage, self.share * size, self.rounds, self.latency)


def group_rings(fabric: Fabric, gpus: Sequence[int]) -> tuple[Ring, ...]:
    """The rings of a group whose position i runs on GPU number ``gpus[i]``."""
    return rings_along([fabric.host_of[gpu] for gpu in gpus], [fabric.uplinks(gpu) for gpu in gpus])


def hop_links(fabric: Fabric, gpus: Sequence[int], hop: Hop) -> tuple[int, ...]:
    """The directed links that a hop's bytes cross, in order."""
    source, target = gpus[hop.source], gpus[hop.target]
    if hop.relay < 0 or hop.relay == hop.source:
        return fabric.route(source, target)
    relay = gpus[hop.relay]
    return fabric.route(source, relay) + fabric.route(relay, target)


def patterns(fabric: Fabric, gpus: Sequence[int], phases: Sequence[Phase]) -> tuple[Pattern, ...]:
    """A collective's phases as activities on the cluster; phases that load the links alike become one."""
    found: list[Pattern] = []
    for phase in phases:
        if not phase.hops:
            continue
        pattern = _pattern(fabric, gpus, phase)
        if found and (found[-1].usage, found[-1].share, found[-1].latency) == (
            pattern.usage,
            pattern.share,
            pattern.latency,
        ):
            found[-1] = Pattern(pattern.usage, pattern.share, found[-1].rounds + pattern.rounds, pattern.latency)
        else:
            found.append(pattern)
    return tuple(found)


def _pattern(fabric: Fabric, gpus: Sequence[int], phase: Phase) -> Pattern:
    share = max(hop.share for hop in phase.hops)
    flows: dict[int, float] = {}
    latencies: list[float] = []
    for hop in phase.hops:
        links = hop_links(fabric, gpus, hop)
        latencies.append(fabric.path_latency(links))
        for link in links:
            flows[link] = flows.get(link, 0.0) + hop.share / share
    return Pattern(tuple(sorted(flows.items())), share, phase.rounds, sum(latencies) / len(latencies))
