"""A collective's description drawn on the cluster for many groups at once, as ``traffic.patterns`` does for one.

Groups that are laid out alike run the same hops between the same positions; only the GPUs differ.  Pure; imports
bindings' types and traffic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from simcluster.collectives.description import SWITCH, Hop, Listed, Phase, Table
from simcluster.traffic.bindings import Bools, Floats, Ints
from simcluster.traffic.traffic import Fabric, Pattern, patterns

_DENSE = 4  # so much more room than rows is faster than sorting them


@dataclass(frozen=True)
class Drawn:
    """One activity of every group: as ``Pattern``, with a ``latency`` per group and usages in columns.

    Row i says that ``flows[i]`` flows of group ``group[i]`` cross ``link[i]``; ascending.
    """

    share: float
    rounds: int
    latency: Floats
    group: Ints
    link: Ints
    flows: Floats

    def of_groups(self, first: int, end: int) -> Drawn:
        """Some of the groups, renumbered."""
        rows = slice(*np.searchsorted(self.group, [first, end]))
        return Drawn(
            self.share,
            self.rounds,
            self.latency[first:end],
            self.group[rows] - first,
            self.link[rows],
            self.flows[rows],
        )

    def loads_as(self, other: Drawn) -> bool:
        """Do both use the links alike, in all groups?"""
        return (
            np.array_equal(self.group, other.group)
            and np.array_equal(self.link, other.link)
            and np.array_equal(self.flows, other.flows)
        )


def drawn(fabric: Fabric, members: Ints, phases: Sequence[Phase]) -> tuple[Drawn, ...]:
    """The activities of groups whose ranks are the rows of ``members``; phases that load the links alike become one."""
    busy = [phase for phase in phases if phase.hops]
    by_itself = any(isinstance(phase.hops, Table) or _meets(phase) for phase in busy)
    found = None if by_itself else _together(fabric, members, busy)
    return _each(fabric, members, phases) if found is None else tuple(found)


def single(group: Iterable[Sequence[Pattern]]) -> tuple[Drawn, ...]:
    """The same from the patterns of every group, which must be equally many and equal in share and rounds."""
    found = []
    for parts in zip(*group, strict=True):
        rows = [(number, link, flows) for number, part in enumerate(parts) for link, flows in part.usage]
        columns = list(zip(*rows, strict=True)) or [(), (), ()]
        number, link = (np.array(column, dtype=np.int64) for column in columns[:2])
        latency = np.array([part.latency for part in parts])
        flows = np.array(columns[2], dtype=np.float64)
        found.append(Drawn(parts[0].share, parts[0].rounds, latency, number, link, flows))
    return tuple(found)


def _each(fabric: Fabric, members: Ints, phases: Sequence[Phase]) -> tuple[Drawn, ...]:
    """One group after the other.

    Where some merge phases and others do not, none does: each phase is drawn by itself.
    """
    found = [patterns(fabric, ranks, phases) for ranks in members.tolist()]
    if len({tuple((part.share, part.rounds) for part in parts) for parts in found}) == 1:
        return single(found)
    return tuple(
        part for phase in phases for part in single(patterns(fabric, ranks, [phase]) for ranks in members.tolist())
    )


def _meets(phase: Phase) -> bool:
    if isinstance(phase.hops, Listed):
        return False
    return any(SWITCH in (hop.source, hop.target) for hop in phase.hops)


def _together(fabric: Fabric, members: Ints, phases: Sequence[Phase]) -> list[Drawn] | None:
    """All groups at once; None where some merge phases that others do not."""
    found: list[Drawn] = []
    known: dict[bytes, Drawn] = {}
    for pipelined, run in groupby(phases, key=lambda phase: phase.pipelined):
        for part in (
            [_pipeline(fabric, members, list(run))]
            if pipelined
            else (_rounds(fabric, members, phase, known) for phase in run)
        ):
            last = found[-1] if found else None
            if last is None or last.share != part.share or not np.array_equal(last.latency, part.latency):
                alike = False
            else:
                alike = last is part or last.loads_as(part)
                if not alike and _some_alike(last, part):
                    return None
            if alike and last is not None:
                found[-1] = replace(last, rounds=last.rounds + part.rounds)
            else:
                found.append(part)
    return found


def _some_alike(one: Drawn, other: Drawn) -> bool:
    """May there be a group whose two activities load the links alike?"""
    count = len(one.latency)
    return bool((_totals(one, count) == _totals(other, count)).all(axis=0).any())


def _totals(part: Drawn, count: int) -> Floats:
    return np.stack([np.bincount(part.group, minlength=count), np.bincount(part.group, part.link, count)])


@dataclass(frozen=True)
class _Hops:
    """Hops of phases by position, in columns; ``weight`` is their share over the largest."""

    share: float
    weight: Floats
    source: Ints
    target: Ints
    relay: Ints
    channel: Ints
    flow: Ints

    @classmethod
    def of(cls, phases: Sequence[Phase]) -> _Hops:
        """All hops, phase by phase."""
        parts = [cls._listed(phase.hops) for phase in phases]
        hops = parts[0] if len(parts) == 1 else Listed.joined(parts)
        share = float(hops.share.max())
        relay = np.where(hops.relay == hops.source, -1, hops.relay)
        if all(isinstance(phase.hops, Listed) for phase in phases):
            return cls(share, hops.share / share, hops.source, hops.target, relay, hops.channel, hops.channel)
        lanes = [np.zeros(len(phase.hops), dtype=np.int64) if isinstance(phase.hops, Listed)
                 else np.array([hop.lane for hop in phase.hops], dtype=np.int64) for phase in phases]  # fmt: skip
        flow = hops.channel + np.concatenate(lanes)
        return cls(share, hops.share / share, hops.source, hops.target, relay, hops.channel, flow)

    @staticmethod
    def _listed(hops: Sequence[Hop]) -> Listed:
        if isinstance(hops, Listed):
            return hops
        whole = [(hop.source, hop.target, hop.relay, hop.channel, hop.chunk) for hop in hops]
        source, target, relay, channel, chunk = np.array(whole, dtype=np.int64).T
        return Listed(source, target, np.array([hop.share for hop in hops]), relay, channel, chunk)

    def ways(self, fabric: Fabric, members: Ints) -> tuple[Ints, Ints, Floats, Floats]:
        """(hop of all groups, link, fraction) of every link that is crossed; and the latency of every hop.

        Hops are numbered group by group.
        """
        source, target = members[:, self.source].ravel(), members[:, self.target].ravel()
        flow = np.tile(self.flow, len(members))
        relayed: Bools = np.tile(self.relay >= 0, len(members))
        if not relayed.any():
            return fabric.routes(source, target, flow)
        relay = np.where(relayed, members[:, self.relay].ravel(), target)
        first = fabric.routes(source, relay, flow)
        then = np.flatnonzero(relayed)
        second = fabric.routes(relay[then], target[then], flow[then])
        hop = np.concatenate([first[0], then[second[0]]])
        order = np.argsort(hop, kind="stable")
        hop, link, fraction = (
            hop[order],
            np.concatenate([first[1], second[1]])[order],
            np.concatenate([first[2], second[2]])[order],
        )
        return hop, link, fraction, fabric.latencies(hop, link, fraction, len(source))


def _usages(hops: _Hops, members: Ints, hop: Ints, link: Ints, fraction: Floats) -> tuple[Ints, Ints, Floats]:
    """(group, link, flows) of ways, ascending; sums in the order of hops, as one group alone would add them."""
    group = hop // len(hops.weight)
    width = int(link.max(initial=0)) + 1
    keys = group * width + link
    weight = hops.weight[hop % len(hops.weight)] * fraction
    if len(members) * width <= _DENSE * len(keys):  # a place for every key there could be, instead of sorting
        there = np.flatnonzero(np.bincount(keys))
        flows = np.bincount(keys, weight)[there]
        keys = there
    else:
        keys, place = np.unique(keys, return_inverse=True)
        flows = np.bincount(place, weight, len(keys))
    number: Ints = keys // width
    return number, keys - number * width, flows.astype(np.float64)


def _rounds(fabric: Fabric, members: Ints, phase: Phase, known: dict[bytes, Drawn]) -> Drawn:
    hops = _Hops.of([phase])
    columns = (hops.source, hops.target, hops.relay, hops.flow, hops.weight, np.array([hops.share, phase.rounds > 1]))
    name = b"".join(column.tobytes() for column in columns)
    if name in known:
        return replace(known[name], rounds=phase.rounds)
    hop, link, fraction, latencies = hops.ways(fabric, members)
    of_hops = latencies.reshape(len(members), -1)
    mean = np.cumsum(of_hops, axis=1)[:, -1] / of_hops.shape[1]  # added up in order, as sum() does
    latency = of_hops.max(axis=1) if phase.rounds == 1 else mean
    found = known[name] = Drawn(hops.share, phase.rounds, latency, *_usages(hops, members, hop, link, fraction))
    return found


def _pipeline(fabric: Fabric, members: Ints, phases: Sequence[Phase]) -> Drawn:
    """Phases whose hops are all under way at once."""
    hops = _Hops.of(phases)
    hop, link, fraction, latencies = hops.ways(fabric, members)
    width = members.shape[1] * (int(hops.channel.max(initial=0)) + 1)
    groups = np.arange(len(members))[:, None] * width
    source = groups + hops.channel * members.shape[1] + hops.source
    target = groups + hops.channel * members.shape[1] + hops.target
    reached = np.zeros(len(members) * width)  # when the first byte is there, by group, channel and position
    first = 0
    for phase in phases:
        own = slice(first, first + len(phase.hops))
        first = own.stop
        _reach(reached, source[:, own], target[:, own], latencies.reshape(len(members), -1)[:, own])
    slowest = reached.reshape(len(members), -1).max(axis=1)
    return Drawn(hops.share, 1, slowest, *_usages(hops, members, hop, link, fraction))


def _reach(reached: Floats, source: Ints, target: Ints, latency: Floats) -> None:
    """Go over hops, each behind those that it depends on; ``reached`` is for every place when the first byte is there.

    A place is done when all hops to it are, so every hop is looked at once.
    """
    start, end, seconds = source.ravel(), target.ravel(), latency.ravel()
    order = np.argsort(start)
    first = np.concatenate([[0], np.cumsum(np.bincount(start, minlength=len(reached)))])
    end, seconds = end[order], seconds[order]
    open_hops = np.bincount(end, minlength=len(reached))
    ready = np.flatnonzero((open_hops == 0) & (np.diff(first) > 0))
    while len(ready):
        counts = first[ready + 1] - first[ready]
        hops = np.arange(int(counts.sum())) + np.repeat(first[ready] - (np.cumsum(counts) - counts), counts)
        ends = end[hops]
        np.maximum.at(reached, ends, np.repeat(reached[ready], counts) + seconds[hops])
        np.subtract.at(open_hops, ends, 1)
        done = np.zeros(len(reached), dtype=bool)
        done[ends] = open_hops[ends] == 0
        ready = np.flatnonzero(done)
    assert not open_hops.any(), "hops of a pipeline that wait for each other"
