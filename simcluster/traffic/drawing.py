"""A collective's description drawn on the cluster for many groups at once, as ``traffic.patterns`` does for one.

Groups that are laid out alike run the same hops between the same positions; only the GPUs differ.  Pure; imports
bindings' types and traffic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from simcluster.collectives.description import SWITCH, Columned, Hop, Listed, Phase, Table
from simcluster.traffic.bindings import Bools, Floats, Ints
from simcluster.traffic.chained import chained_trees
from simcluster.traffic.traffic import Fabric, Pattern, patterns

_UNITS = 2.0**20  # weights that are multiples of 1 / this are added up without rounding, in any order
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


def drawn(fabric: Fabric, members: Ints, phases: Sequence[Phase], *, timed: bool = True) -> tuple[Drawn, ...]:
    """The activities of groups whose ranks are the rows of ``members``; phases that load the links alike become one.

    ``timed``: are latencies needed?  If not they may be 0.
    """
    found = drawn_at_once(fabric, members, phases, timed=timed)
    return _each(fabric, members, phases) if found is None else found


def drawn_at_once(
    fabric: Fabric, members: Ints, phases: Sequence[Phase], *, timed: bool = True
) -> tuple[Drawn, ...] | None:
    """``drawn``, but None where groups have to be gone through one by one, or where some merge phases that others do
    not."""
    chained = None if timed or len(members) > 1 else chained_trees(fabric, members[0], phases)
    if chained is not None:
        return (Drawn(*chained),)
    busy = [phase for phase in phases if phase.hops]
    by_itself = any(isinstance(phase.hops, Table) or _meets(phase) for phase in busy)
    found = None if by_itself else _together(fabric, members, busy)
    return None if found is None else tuple(found)


def drawn_turning(
    fabric: Fabric, members: Ints, phases: Sequence[Phase], cut: int, counterpart: Ints
) -> tuple[Drawn, ...] | None:
    """``drawn`` for groups that come onto themselves if each position is moved on by ``cut``, in part.

    Flows on links of the window alone, which ``counterpart`` has for every link; what the groups do there are the
    hops of their first ``cut`` positions.  None where the hops do not come onto themselves as well.
    """
    busy = [phase for phase in phases if phase.hops]
    if any(isinstance(phase.hops, Table) or phase.pipelined or _meets(phase) for phase in busy):
        return None
    known: dict[bytes, Drawn] = {}
    found: list[Drawn] = []
    for phase in busy:
        part = _rounds(fabric, members, phase, known, (cut, counterpart))
        if part is None:
            return None
        found.append(part)
    merged = _merged(found)
    return None if merged is None else tuple(merged)


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
    if isinstance(phase.hops, Listed | Columned):
        return False
    return any(SWITCH in (hop.source, hop.target) for hop in phase.hops)


def _together(fabric: Fabric, members: Ints, phases: Sequence[Phase]) -> list[Drawn] | None:
    """All groups at once; None where some merge phases that others do not."""
    found: list[Drawn | None] = []
    known: dict[bytes, Drawn] = {}
    for pipelined, run in groupby(phases, key=lambda phase: phase.pipelined):
        if pipelined:
            found.append(_pipeline(fabric, members, list(run)))
        else:
            found += [_rounds(fabric, members, phase, known) for phase in run]
    return _merged([part for part in found if part is not None])


def _merged(parts: Iterable[Drawn]) -> list[Drawn] | None:
    """Activities after each other that load the links alike become one; None where only those of some groups do."""
    found: list[Drawn] = []
    for part in parts:
        last = found[-1] if found else None
        if last is None or last.share != part.share or not np.array_equal(last.latency, part.latency):
            found.append(part)
        elif last is part or last.loads_as(part):
            found[-1] = replace(last, rounds=last.rounds + part.rounds)
        elif _some_alike(last, part):
            return None
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
        if all(isinstance(phase.hops, Listed | Columned) for phase in phases):
            return cls(share, hops.share / share, hops.source, hops.target, relay, hops.channel, hops.channel)
        lanes = [np.zeros(len(phase.hops), dtype=np.int64) if isinstance(phase.hops, Listed)
                 else np.array([hop.lane for hop in phase.hops], dtype=np.int64) for phase in phases]  # fmt: skip
        flow = hops.channel + np.concatenate(lanes)
        return cls(share, hops.share / share, hops.source, hops.target, relay, hops.channel, flow)

    @staticmethod
    def _listed(hops: Sequence[Hop]) -> Listed:
        if isinstance(hops, Listed | Columned):
            return hops if isinstance(hops, Listed) else hops.listed
        whole = [(hop.source, hop.target, hop.relay, hop.channel, hop.chunk) for hop in hops]
        source, target, relay, channel, chunk = np.array(whole, dtype=np.int64).T
        return Listed(source, target, np.array([hop.share for hop in hops]), relay, channel, chunk)

    def turned_back(self, size: int, cut: int) -> tuple[_Hops, Ints] | None:
        """The hops that begin in the first ``cut`` of ``size`` positions, each once with all its weight, and for every
        hop the one of those that becomes it when positions move on.

        None where some hop has no such one of equal weight for each of the other parts, or where it takes rounding to
        add up weights.
        """
        turn = self.source // cut
        source, target = self.source - turn * cut, (self.target - turn * cut) % size
        relay = np.where(self.relay < 0, -1, (self.relay - turn * cut) % size)
        flows = int(self.flow.max(initial=0)) + 1
        name = ((source * size + target) * (size + 1) + relay + 1) * flows + self.flow
        names, first, which = np.unique(name, return_index=True, return_inverse=True)
        turns = size // cut
        weight = np.bincount(which * turns + turn, self.weight, len(names) * turns).astype(float).reshape(-1, turns)
        units = self.weight * _UNITS
        if (weight != weight[:, :1]).any() or (units != np.floor(units)).any():
            return None
        hops = _Hops(self.share, weight[:, 0], source[first], target[first], relay[first], self.channel[first],
                     self.flow[first])  # fmt: skip
        return hops, which

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


def _rounds(
    fabric: Fabric, members: Ints, phase: Phase, known: dict[bytes, Drawn], turning: tuple[int, Ints] | None = None
) -> Drawn | None:
    """A phase; see ``drawn_turning`` for ``turning``, (cut, counterpart), and for None."""
    hops = _Hops.of([phase])
    columns = (hops.source, hops.target, hops.relay, hops.flow, hops.weight, np.array([hops.share, phase.rounds > 1]))
    name = b"".join(column.tobytes() for column in columns)
    if name in known:
        return replace(known[name], rounds=phase.rounds)
    drawn_hops, which = hops, None
    if turning is not None:
        cut = hops.turned_back(members.shape[1], turning[0])
        if cut is None:
            return None
        drawn_hops, which = cut
    hop, link, fraction, latencies = drawn_hops.ways(fabric, members)
    if turning is not None:
        if (fraction != 1.0).any():
            return None
        link = turning[1][link]
    of_hops = latencies.reshape(len(members), -1)
    if phase.rounds == 1:
        latency = of_hops.max(axis=1)
    else:
        of_hops = of_hops if which is None else of_hops[:, which]
        latency = np.cumsum(of_hops, axis=1)[:, -1] / of_hops.shape[1]  # added up in order, as sum() does
    loads = _usages(drawn_hops, members, hop, link, fraction)
    found = known[name] = Drawn(hops.share, phase.rounds, latency, *loads)
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
