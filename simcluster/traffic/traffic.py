"""Traffic of collectives on a cluster's links, computed from their phases."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

import numpy as np

from simcluster.base.arrays import Floats, Int32s, Ints
from simcluster.base.clock import round_to_tick
from simcluster.base.link_columns import LinkColumn, LinkValues, TreeFlows
from simcluster.collectives.description import SWITCH, BlockwiseHops, Hop, Phase
from simcluster.collectives.group import Group, LazyNames, Ring
from simcluster.collectives.token_relay import ExpertRouting, RelayLinkTimes, dispatch_phases_by_level
from simcluster.traffic.fairness import Usage, solo_rate

Spread = tuple[tuple[int, float], ...]
"""(link, fraction of the bytes) of a flow; one path has fractions of 1, in order."""


class Fabric(Protocol):
    """Interface of a cluster for computing traffic; ``topology.cluster.Cluster`` implements it."""

    @property
    def node_of_gpu(self) -> Ints: ...
    @property
    def meshed(self) -> bool: ...
    def spans_sites(self, hosts: Sequence[int] | Ints) -> bool: ...
    def spread_route(self, src: int, dst: int, flow: int = 0) -> Spread: ...
    def mean_route_latency(self, spread: Spread) -> float: ...
    def route_rows(self, src: Ints, dst: Ints, flow: Ints) -> tuple[Ints, Ints, Floats, Floats]: ...
    def route_latencies(self, row: Ints, link: Ints, fraction: Floats, rows: int) -> Floats: ...
    def tree_link_loads(self, flows: TreeFlows) -> LinkColumn | None: ...
    def nvswitch_and_nic_numbers(self, gpus: Ints) -> tuple[Int32s, Int32s]: ...
    def exit_nics(self, gpu: int) -> tuple[str, ...]: ...
    def nvswitch(self, gpu: int) -> str: ...
    def routes_to_common_switch(self, gpus: Sequence[int], turn: int) -> tuple[tuple[Spread, Spread], ...]: ...
    def host_memory_route(self, gpu: int, direction: str) -> Spread: ...


_MANY = 512  # ranks of a group from which on names are not made before they are asked for
_ROOM = 1 << 16  # hops at a time: some hundred MB


@dataclass(frozen=True, slots=True)
class Traffic:
    """Traffic of one transfer: number of rounds, bytes per flow and round, and flows on each link (``usage``).

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

    def solo_rate(self, capacity: Sequence[float]) -> float:
        """Return the rate (B/s) per flow if no link is shared with other traffic."""
        return min(self.bound, solo_rate(self.usage, capacity))

    def solo_seconds(self, capacity: Sequence[float]) -> float:
        """Return the duration (s), on the clock's grid, if no link is shared with other traffic."""
        return self.latency_seconds + self.rounds * round_to_tick(self.round_bytes / self.solo_rate(capacity))


@dataclass(frozen=True, slots=True)
class LinkPattern:
    """Link usage of a collective's phase (or pipelined phases), independent of the collective's size.

    ``share`` is the part of the size that its largest flow carries in a round, ``latency`` (s) what a round pays. In
    repeated rounds that is the mean over the hops, because a chunk crosses every kind of hop on its way around (NCCL's
    tuner counts the same way), in a single round the longest hop's, in a pipeline that of the longest way through it.
    """

    usage: Usage
    share: float
    rounds: int
    latency: float

    def make_traffic(self, size: float) -> Traffic:
        """Return the traffic of this pattern for a collective of ``size`` bytes (full buffer, as in nccl-tests)."""
        return Traffic(self.usage, self.share * size, self.rounds, self.latency)


def make_group(fabric: Fabric, gpus: Sequence[int] | Ints) -> Group:
    """Return the group of these GPUs for collective algorithms; position i is GPU ``gpus[i]``."""
    numbers = np.asarray(gpus, dtype=np.int64)
    hosts = fabric.node_of_gpu[numbers]
    meshed, far = fabric.meshed, fabric.spans_sites(hosts)
    if len(numbers) > _MANY:
        switches, nics = fabric.nvswitch_and_nic_numbers(numbers)
        if nics.shape[1] == 1 and nics.min() >= 0:
            return Group(
                hosts=hosts.data,
                nics=LazyNames(nics, lambda place: fabric.exit_nics(int(numbers[place]))),
                nvswitches=LazyNames(switches, lambda place: fabric.nvswitch(int(numbers[place]))),
                meshed=meshed,
                spans_sites=far,
            )
    names = numbers.tolist()
    nvswitches = tuple(map(fabric.nvswitch, names))
    return Group(tuple(hosts.tolist()), tuple(map(fabric.exit_nics, names)), nvswitches, meshed, far)


def find_group_rings(fabric: Fabric, gpus: Sequence[int]) -> tuple[Ring, ...]:
    """Return the rings of the group of these GPUs; position i is GPU ``gpus[i]``."""
    return make_group(fabric, gpus).rings


def host_copy_pattern(fabric: Fabric, gpu: int, direction: str) -> LinkPattern:
    """Return the link usage of a copy between a GPU and its host's memory: one flow, one round."""
    way = fabric.host_memory_route(gpu, direction)
    return LinkPattern(sum_usage([(1.0, way)]), 1.0, 1, fabric.mean_route_latency(way))


def hop_link_fractions(fabric: Fabric, gpus: Sequence[int], hop: Hop) -> Spread:
    """Return (link, fraction of the hop's bytes) for each directed link that a hop crosses.

    Each channel, and each lane, is a separate flow.
    """
    source, target, flow = gpus[hop.source], gpus[hop.target], hop.channel + hop.lane
    if hop.relay < 0 or hop.relay == hop.source:
        return fabric.spread_route(source, target, flow)
    relay = gpus[hop.relay]
    return fabric.spread_route(source, relay, flow) + fabric.spread_route(relay, target, flow)


def sum_usage(flows: Iterable[tuple[float, Spread]]) -> Usage:
    """Return the number of flows on every link, summed over flows given as (weight, route)."""
    found: dict[int, float] = {}
    for weight, spread in flows:
        for link, fraction in spread:
            found[link] = found.get(link, 0.0) + weight * fraction
    return tuple(sorted(found.items()))


def link_patterns(fabric: Fabric, gpus: Sequence[int], phases: Iterable[Phase]) -> tuple[LinkPattern, ...]:
    """Return the link patterns of a collective's phases; consecutive phases with equal loads are merged."""
    found: list[LinkPattern] = []
    for pattern in _phase_patterns(fabric, gpus, phases):
        last = found[-1] if found else None
        if last and (last.usage, last.share, last.latency) == (pattern.usage, pattern.share, pattern.latency):
            found[-1] = LinkPattern(last.usage, last.share, last.rounds + pattern.rounds, last.latency)
        else:
            found.append(pattern)
    return tuple(found)


def _phase_patterns(fabric: Fabric, gpus: Sequence[int], phases: Iterable[Phase]) -> Iterator[LinkPattern]:
    busy = (phase for phase in phases if phase.hops)
    for pipelined, run in groupby(busy, key=lambda phase: phase.pipelined):
        if pipelined:
            yield _pipeline_pattern(fabric, gpus, list(run))
        else:
            yield from (_rounds_pattern(fabric, gpus, phase) for phase in run)


def _rounds_pattern(fabric: Fabric, gpus: Sequence[int], phase: Phase) -> LinkPattern:
    if isinstance(phase.hops, BlockwiseHops):
        return _large_phase_pattern(fabric, gpus, phase.hops, phase.rounds)
    share = max(hop.share for hop in phase.hops)
    latencies: list[float] = []

    def weighted_routes() -> Iterator[tuple[float, Spread]]:
        for hop in phase.hops:
            spread = hop_link_fractions(fabric, gpus, hop)
            latencies.append(fabric.mean_route_latency(spread))
            yield hop.share / share, spread

    usage = sum_usage(weighted_routes())
    latency = max(latencies) if phase.rounds == 1 else sum(latencies) / len(latencies)
    return LinkPattern(usage, share, phase.rounds, latency)


def _large_phase_pattern(fabric: Fabric, gpus: Sequence[int], hops: BlockwiseHops, rounds: int) -> LinkPattern:
    """Return the link pattern of a one-round phase with very many hops, computed in blocks of hops."""
    assert rounds == 1
    place = np.array(gpus, dtype=np.int64)
    share = max(float(part.share.max()) for part in hops.hop_blocks(_ROOM))
    loads, latency = [], 0.0
    for part in hops.hop_blocks(_ROOM):
        row, link, fraction, latencies = fabric.route_rows(place[part.source], place[part.target], part.lane)
        loads.append(np.bincount(link, (part.share / share)[row] * fraction))
        latency = max(latency, float(latencies.max()))
    load = np.zeros(max(map(len, loads)))
    for each in loads:
        load[: len(each)] += each
    used = np.flatnonzero(load)
    usage = tuple(zip(used.tolist(), load[used].tolist(), strict=True))
    return LinkPattern(usage, share, 1, latency)


def _pipeline_pattern(fabric: Fabric, gpus: Sequence[int], phases: Sequence[Phase]) -> LinkPattern:
    """Return the link pattern of pipelined phases, whose hops all run at the same time."""
    share = max(hop.share for phase in phases for hop in phase.hops)
    reached: dict[tuple[int, int], float] = {}  # (position, channel) -> when its first byte is there

    def weighted_routes() -> Iterator[tuple[float, Spread]]:
        for phase in phases:
            for hop, way, loaded in _hop_routes(fabric, gpus, phase):
                there = reached.get((hop.source, hop.channel), 0.0) + fabric.mean_route_latency(way)
                reached[hop.target, hop.channel] = max(there, reached.get((hop.target, hop.channel), 0.0))
                yield hop.share / share, loaded

    usage = sum_usage(weighted_routes())
    return LinkPattern(usage, share, 1, max(reached.values()))


def _hop_routes(fabric: Fabric, gpus: Sequence[int], phase: Phase) -> Iterator[tuple[Hop, Spread, Spread]]:
    """Yield (hop, route, links that the hop loads) for every hop of a phase.

    Those differ where a switch adds up or copies: of several hops that carry the same data to or from SWITCH, a link
    that they have in common carries the data once.
    """
    meeting: dict[object, dict[int, None]] = {}
    for hop in phase.hops:
        if SWITCH in (hop.source, hop.target):
            meeting.setdefault(_hop_data_key(hop), {})[max(hop.source, hop.target)] = None
    ways = {
        data: dict(zip(ends, fabric.routes_to_common_switch([gpus[end] for end in ends], turn), strict=True))
        for turn, (data, ends) in enumerate(meeting.items())
    }
    loaded: dict[object, dict[int, None]] = {data: {} for data in meeting}
    for hop in phase.hops:
        if SWITCH not in (hop.source, hop.target):
            way = hop_link_fractions(fabric, gpus, hop)
            yield hop, way, way
            continue
        up, down = ways[_hop_data_key(hop)][max(hop.source, hop.target)]
        way, before = (up if hop.target == SWITCH else down), loaded[_hop_data_key(hop)]
        yield hop, way, tuple(part for part in way if part[0] not in before)
        before.update(dict.fromkeys(link for link, _ in way))


def _hop_data_key(hop: Hop) -> object:
    return hop.target == SWITCH, hop.channel, hop.chunk, hop.count, hop.stride


def relay_link_times(fabric: Fabric, rates: LinkValues, routes: ExpertRouting, gpus: Sequence[int]) -> RelayLinkTimes:
    """Return how long MoE dispatch of an ep group keeps each link busy; ``rates`` are B/s per link."""
    group = make_group(fabric, gpus)
    loads: list[dict[int, float]] = []
    for phases in dispatch_phases_by_level(group, routes):
        parts = link_patterns(fabric, gpus, phases)
        loads.append({link: part.share * flows for part in parts for link, flows in part.usage})
    links = np.array(sorted({**loads[0], **loads[1]}), dtype=np.int64)
    rate = rates.values_at(links).astype(np.float64)
    between, inside = (np.array([load.get(link, 0.0) for link in links.tolist()]) / rate for load in loads)
    return RelayLinkTimes(group.positions_by_node, between, inside)
