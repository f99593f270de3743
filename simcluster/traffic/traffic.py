"""Traffic of collectives on a cluster's links, from their phases. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

import numpy as np

from simcluster.base.arrays import Floats, Int32s, Ints
from simcluster.base.clock import round_to_tick
from simcluster.base.link_columns import LinkValues, PerLink, TreeFlows
from simcluster.collectives.description import SWITCH, Hop, HopTable, Phase
from simcluster.collectives.group import Group, LazyNames, Ring, rings_along
from simcluster.collectives.relayed import RelayedLinks, TokenRoutes, dispatch_levels
from simcluster.traffic.fairness import Usage, solo_rate

Spread = tuple[tuple[int, float], ...]
"""(link, fraction of the bytes) of a flow; one path has fractions of 1, in order."""


class Fabric(Protocol):
    """Interface of a cluster that the computation of traffic needs; ``topology.cluster.Cluster`` implements it."""

    @property
    def hosts(self) -> Ints: ...
    @property
    def meshed(self) -> bool: ...
    def far(self, hosts: Sequence[int] | Ints) -> bool: ...
    def spread(self, src: int, dst: int, flow: int = 0) -> Spread: ...
    def spread_latency(self, spread: Spread) -> float: ...
    def routes(self, src: Ints, dst: Ints, flow: Ints) -> tuple[Ints, Ints, Floats, Floats]: ...
    def latencies(self, row: Ints, link: Ints, fraction: Floats, rows: int) -> Floats: ...
    def loads(self, flows: TreeFlows) -> PerLink | None: ...
    def seats(self, gpus: Ints) -> tuple[Int32s, Int32s]: ...
    def uplinks(self, gpu: int) -> tuple[str, ...]: ...
    def nvswitch(self, gpu: int) -> str: ...
    def switch_ways(self, gpus: Sequence[int], turn: int) -> tuple[tuple[Spread, Spread], ...]: ...
    def host_way(self, gpu: int, direction: str) -> Spread: ...


_MANY = 512  # ranks of a group from which on names are not made before they are asked for
_ROOM = 1 << 16  # hops at a time: some hundred MB


@dataclass(frozen=True, slots=True)
class Traffic:
    """Traffic of one activity: ``rounds`` times ``round_bytes`` per flow, and its flows on each link (``usage``).

    ``bound`` is the most B/s that a flow reaches whatever the links allow (the protocol's limit). ``latency`` (s) is
    paid in every round, ``latency_seconds`` is that of all rounds on the clock's grid. On unshared links the activity
    takes rounds x (latency + round_bytes / rate), to the bit what the same rounds take one by one.
    """

    usage: Usage
    round_bytes: float
    rounds: int
    latency: float
    bound: float = math.inf
    latency_seconds: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "latency_seconds", self.rounds * round_to_tick(self.latency))

    def alone_rate(self, capacity: Sequence[float]) -> float:
        """Return the activity's rate (B/s) per flow if it has its links to itself."""
        return min(self.bound, solo_rate(self.usage, capacity))

    def alone_seconds(self, capacity: Sequence[float]) -> float:
        """Return the activity's duration (s) if it has its links to itself, on the clock's grid."""
        return self.latency_seconds + self.rounds * round_to_tick(self.round_bytes / self.alone_rate(capacity))


@dataclass(frozen=True, slots=True)
class Pattern:
    """Link usage of a collective's phase, or of a pipeline of phases, before the size is known.

    ``share`` is the part of the size that its largest flow carries in a round, ``latency`` (s) what a round pays. In
    repeated rounds that is the mean over the hops, because a chunk crosses every kind of hop on its way around (NCCL's
    tuner counts the same way), in a single round the longest hop's, in a pipeline that of the longest way through it.
    """

    usage: Usage
    share: float
    rounds: int
    latency: float

    def traffic(self, size: float) -> Traffic:
        """Return the traffic of a collective of ``size`` bytes (nccl-tests' convention: the full buffer)."""
        return Traffic(self.usage, self.share * size, self.rounds, self.latency)


def group_of(fabric: Fabric, gpus: Sequence[int] | Ints) -> Group:
    """Return the group of these GPUs as collective algorithms see it; position i is on GPU ``gpus[i]``."""
    numbers = np.asarray(gpus, dtype=np.int64)
    hosts = fabric.hosts[numbers]
    meshed, far = fabric.meshed, fabric.far(hosts)
    if len(numbers) > _MANY:
        switches, nics = fabric.seats(numbers)
        if nics.shape[1] == 1 and nics.min() >= 0:
            return Group(
                hosts=hosts.data,
                nics=LazyNames(nics, lambda place: fabric.uplinks(int(numbers[place]))),
                nvswitches=LazyNames(switches, lambda place: fabric.nvswitch(int(numbers[place]))),
                meshed=meshed,
                far=far,
            )
    names = numbers.tolist()
    nvswitches = tuple(map(fabric.nvswitch, names))
    return Group(tuple(hosts.tolist()), tuple(map(fabric.uplinks, names)), nvswitches, meshed, far)


def group_rings(fabric: Fabric, gpus: Sequence[int]) -> tuple[Ring, ...]:
    """Return the rings of a group of these GPUs; position i is on GPU ``gpus[i]``."""
    hosts = fabric.hosts[list(gpus)].tolist()
    return rings_along(hosts, [fabric.uplinks(gpu) for gpu in gpus], meshed=fabric.meshed)


def copy_pattern(fabric: Fabric, gpu: int, direction: str) -> Pattern:
    """Return the link pattern of a copy between a GPU and its host's memory: one flow, one round."""
    way = fabric.host_way(gpu, direction)
    return Pattern(sum_usage([(1.0, way)]), 1.0, 1, fabric.spread_latency(way))


def hop_spread(fabric: Fabric, gpus: Sequence[int], hop: Hop) -> Spread:
    """Return the directed links that a hop crosses, with the fraction of its bytes on each.

    Each channel, and each lane, is a separate flow.
    """
    source, target, flow = gpus[hop.source], gpus[hop.target], hop.channel + hop.lane
    if hop.relay < 0 or hop.relay == hop.source:
        return fabric.spread(source, target, flow)
    relay = gpus[hop.relay]
    return fabric.spread(source, relay, flow) + fabric.spread(relay, target, flow)


def sum_usage(flows: Iterable[tuple[float, Spread]]) -> Usage:
    """Return the number of flows on every link, from flows given by weight and route."""
    found: dict[int, float] = {}
    for weight, spread in flows:
        for link, fraction in spread:
            found[link] = found.get(link, 0.0) + weight * fraction
    return tuple(sorted(found.items()))


def patterns(fabric: Fabric, gpus: Sequence[int], phases: Iterable[Phase]) -> tuple[Pattern, ...]:
    """Return a collective's phases as link patterns on a cluster; consecutive phases with equal loads are merged."""
    found: list[Pattern] = []
    for pattern in _phase_patterns(fabric, gpus, phases):
        last = found[-1] if found else None
        if last and (last.usage, last.share, last.latency) == (pattern.usage, pattern.share, pattern.latency):
            found[-1] = Pattern(last.usage, last.share, last.rounds + pattern.rounds, last.latency)
        else:
            found.append(pattern)
    return tuple(found)


def _phase_patterns(fabric: Fabric, gpus: Sequence[int], phases: Iterable[Phase]) -> Iterator[Pattern]:
    busy = (phase for phase in phases if phase.hops)
    for pipelined, run in groupby(busy, key=lambda phase: phase.pipelined):
        if pipelined:
            yield _pipeline_pattern(fabric, gpus, list(run))
        else:
            yield from (_rounds_pattern(fabric, gpus, phase) for phase in run)


def _rounds_pattern(fabric: Fabric, gpus: Sequence[int], phase: Phase) -> Pattern:
    if isinstance(phase.hops, HopTable):
        return _large_phase_pattern(fabric, gpus, phase.hops, phase.rounds)
    share = max(hop.share for hop in phase.hops)
    latencies: list[float] = []

    def flows() -> Iterator[tuple[float, Spread]]:
        for hop in phase.hops:
            spread = hop_spread(fabric, gpus, hop)
            latencies.append(fabric.spread_latency(spread))
            yield hop.share / share, spread

    usage = sum_usage(flows())
    latency = max(latencies) if phase.rounds == 1 else sum(latencies) / len(latencies)
    return Pattern(usage, share, phase.rounds, latency)


def _large_phase_pattern(fabric: Fabric, gpus: Sequence[int], hops: HopTable, rounds: int) -> Pattern:
    """Return the link pattern of a phase with very many hops, processed in blocks; a table is a single round."""
    assert rounds == 1
    place = np.array(gpus, dtype=np.int64)
    share = max(float(part.share.max()) for part in hops.parts(_ROOM))
    loads, latency = [], 0.0
    for part in hops.parts(_ROOM):
        row, link, fraction, latencies = fabric.routes(place[part.source], place[part.target], part.lane)
        loads.append(np.bincount(link, (part.share / share)[row] * fraction))
        latency = max(latency, float(latencies.max()))
    load = np.zeros(max(map(len, loads)))
    for each in loads:
        load[: len(each)] += each
    used = np.flatnonzero(load)
    usage = tuple(zip(used.tolist(), load[used].tolist(), strict=True))
    return Pattern(usage, share, 1, latency)


def _pipeline_pattern(fabric: Fabric, gpus: Sequence[int], phases: Sequence[Phase]) -> Pattern:
    """Return the link pattern of pipelined phases, whose hops are all in flight at once."""
    share = max(hop.share for phase in phases for hop in phase.hops)
    reached: dict[tuple[int, int], float] = {}  # (position, channel) -> when its first byte is there

    def flows() -> Iterator[tuple[float, Spread]]:
        for phase in phases:
            for hop, way, loaded in _hop_routes(fabric, gpus, phase):
                there = reached.get((hop.source, hop.channel), 0.0) + fabric.spread_latency(way)
                reached[hop.target, hop.channel] = max(there, reached.get((hop.target, hop.channel), 0.0))
                yield hop.share / share, loaded

    usage = sum_usage(flows())
    return Pattern(usage, share, 1, max(reached.values()))


def _hop_routes(fabric: Fabric, gpus: Sequence[int], phase: Phase) -> Iterator[tuple[Hop, Spread, Spread]]:
    """Yield every hop of a phase with its route and with the links that it loads.

    Those differ where a switch adds up or copies: of several hops that carry the same data to or from SWITCH, a link
    that they have in common carries the data once.
    """
    meeting: dict[object, dict[int, None]] = {}
    for hop in phase.hops:
        if SWITCH in (hop.source, hop.target):
            meeting.setdefault(_hop_data(hop), {})[max(hop.source, hop.target)] = None
    ways = {
        data: dict(zip(ends, fabric.switch_ways([gpus[end] for end in ends], turn), strict=True))
        for turn, (data, ends) in enumerate(meeting.items())
    }
    loaded: dict[object, dict[int, None]] = {data: {} for data in meeting}
    for hop in phase.hops:
        if SWITCH not in (hop.source, hop.target):
            way = hop_spread(fabric, gpus, hop)
            yield hop, way, way
            continue
        up, down = ways[_hop_data(hop)][max(hop.source, hop.target)]
        way, before = (up if hop.target == SWITCH else down), loaded[_hop_data(hop)]
        yield hop, way, tuple(part for part in way if part[0] not in before)
        before.update(dict.fromkeys(link for link, _ in way))


def _hop_data(hop: Hop) -> object:
    return hop.target == SWITCH, hop.channel, hop.chunk, hop.count, hop.stride


def relayed_links(fabric: Fabric, capacity: LinkValues, routes: TokenRoutes, gpus: Sequence[int]) -> RelayedLinks:
    """Return how long relayed tokens keep the links of an ep group busy; ``capacity`` is B/s per link."""
    group = group_of(fabric, gpus)
    loads: list[dict[int, float]] = []
    for phases in dispatch_levels(group, routes):
        parts = patterns(fabric, gpus, phases)
        loads.append({link: part.share * flows for part in parts for link, flows in part.usage})
    links = np.array(sorted({**loads[0], **loads[1]}), dtype=np.int64)
    rate = capacity.of(links).astype(np.float64)
    between, inside = (np.array([load.get(link, 0.0) for link in links.tolist()]) / rate for load in loads)
    return RelayedLinks(group.machines, between, inside)
