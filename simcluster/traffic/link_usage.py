"""Patterns of many groups at once: a collective's description bound to links, as ``traffic.patterns`` does for one.

Groups that are laid out alike run the same hops between the same positions; only the GPUs differ.  Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.link_columns import PerLink
from simcluster.collectives.description import SWITCH, Columned, Listed, Phase, Table
from simcluster.traffic.hop_columns import HopColumns, added_up, chained_trees, usages
from simcluster.traffic.traffic import Fabric, Pattern, patterns

_PARTS = 2.0**20
"""Fractions of flows that are whole multiples of its inverse are added up exactly, in whichever order."""


@dataclass(frozen=True)
class PatternTable:
    """One activity of every group: as ``Pattern``, with a ``latency`` per group and usages in columns.

    Row i says that ``flows[i]`` flows of group ``group[i]`` cross ``link[i]``; ascending.
    """

    share: float
    rounds: int
    latency: Floats
    group: Ints
    link: Ints
    flows: Floats

    def of_groups(self, first: int, end: int) -> PatternTable:
        """Some of the groups, renumbered."""
        rows = slice(*np.searchsorted(self.group, [first, end]))
        group, link, flows = self.group[rows] - first, self.link[rows], self.flows[rows]
        return PatternTable(self.share, self.rounds, self.latency[first:end], group, link, flows)

    def on_links(self, links: Ints) -> Floats:
        """Flows of the group, where there is but one, on some links."""
        place = np.searchsorted(self.link, links)
        there = np.append(self.link, -1)[place] == links
        return np.where(there, np.append(self.flows, 0.0)[place], 0.0)

    @property
    def name(self) -> bytes:
        """Equal for those that use the links alike, in all groups."""
        return b"".join([self.group.tobytes(), self.link.tobytes(), self.flows.tobytes()])


class OnMost(PatternTable):
    """An activity of a single group that is on most links: ``load`` has the flows on every one, columns are made when
    they are asked for."""

    load: PerLink

    def __init__(self, share: float, load: PerLink) -> None:
        for name, value in {"share": share, "rounds": 1, "latency": np.zeros(1), "load": load}.items():
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Ints | Floats:
        if name not in ("group", "link", "flows"):
            raise AttributeError(name)
        link = np.flatnonzero(self.load.all)
        self.__dict__.update(link=link, flows=self.load.all[link], group=np.zeros_like(link))
        return self.__dict__[name]  # type: ignore[no-any-return]

    def of_groups(self, first: int, end: int) -> PatternTable:
        """The only group."""
        assert (first, end) == (0, 1)
        return self

    def on_links(self, links: Ints) -> Floats:
        """Flows of the group on some links."""
        return self.load.of(links)


def drawn_at_once(
    fabric: Fabric, members: Ints, phases: Sequence[Phase], *, timed: bool = True
) -> tuple[PatternTable, ...] | None:
    """Return the activities of groups whose ranks are the rows of ``members``; phases that load links alike become one.

    ``timed``: are latencies needed?  If not they may be 0.  None where groups have to be gone through one by one, or
    where some merge phases that others do not.
    """
    chained = None if timed or len(members) > 1 else chained_trees(fabric, members[0], phases)
    if chained is not None:
        return (OnMost(*chained),)
    busy = [phase for phase in phases if phase.hops]
    if any(isinstance(phase.hops, Table) or _meets(phase) for phase in busy):
        return None
    found: list[PatternTable] = []
    known: dict[bytes, PatternTable] = {}
    for pipelined, run in groupby(busy, key=lambda phase: phase.pipelined):
        if pipelined:
            found.append(_pipeline(fabric, members, list(run), timed=timed))
        else:
            found += [_rounds(fabric, members, phase, known) for phase in run]
    return _merged(found)


def drawn_one_by_one(fabric: Fabric, members: Ints, phases: Sequence[Phase]) -> tuple[PatternTable, ...]:
    """Return the same, one group after the other.

    Where some merge phases and others do not, none does: each phase is drawn by itself.
    """
    found = [patterns(fabric, ranks, phases) for ranks in members.tolist()]
    if len({tuple((part.share, part.rounds) for part in parts) for parts in found}) == 1:
        return single(found)
    return tuple(
        part for phase in phases for part in single(patterns(fabric, ranks, [phase]) for ranks in members.tolist())
    )


def drawn_turning(
    fabric: Fabric, members: Ints, phases: Sequence[Phase], cut: int, counterpart: PerLink
) -> tuple[PatternTable, ...] | None:
    """Return this for groups that come onto themselves if each position is moved on by ``cut``, in part.

    Flows on links of the window alone, which are every link's ``counterpart``; what the groups do there are the
    hops of their first ``cut`` positions.  None where the hops do not come onto themselves as well.
    """
    busy = [phase for phase in phases if phase.hops]
    if any(isinstance(phase.hops, Table) or phase.pipelined or _meets(phase) for phase in busy):
        return None
    hops = [HopColumns.of([phase]) for phase in busy]
    own = [each.turned_back(members.shape[1], cut) for each in hops]
    turned = [each for each in own if each is not None]
    if not busy:
        return ()
    if len(turned) < len(busy):
        return None
    at_once = HopColumns.joined([some for some, _ in turned])
    hop, link, fraction, latencies = at_once.ways(fabric, members)
    link = counterpart.of(link).astype(np.int64)
    if (fraction * _PARTS % 1.0).any() or (link < 0).any():
        return None
    ends = np.cumsum([len(some.weight) for some, _ in turned])
    seconds = np.split(latencies.reshape(len(members), -1), ends, axis=1)
    of_group, place = np.divmod(hop, ends[-1])
    of_phase = np.searchsorted(ends, place, side="right")
    groups, links, flows = added_up(of_phase * len(members) + of_group, link, at_once.weight[place] * fraction)
    bounds = np.searchsorted(groups, np.arange(len(busy) + 1) * len(members)).tolist()
    found = []
    for number, (phase, whole, (_, becomes)) in enumerate(zip(busy, hops, turned, strict=True)):
        rows = slice(bounds[number], bounds[number + 1])
        latency, which = _latency(phase, seconds[number], becomes), groups[rows] - number * len(members)
        found.append(PatternTable(whole.share, phase.rounds, latency, which, links[rows], flows[rows]))
    return _merged(found)


def single(group: Iterable[Sequence[Pattern]]) -> tuple[PatternTable, ...]:
    """Return the same from the patterns of every group, which must be equally many and equal in share and rounds."""
    found = []
    for parts in zip(*group, strict=True):
        usages = [part.usage for part in parts]
        number = np.repeat(np.arange(len(parts)), list(map(len, usages)))
        link = np.array([link for usage in usages for link, _ in usage], dtype=np.int64)
        flows = np.array([flows for usage in usages for _, flows in usage], dtype=np.float64)
        latency = np.array([part.latency for part in parts])
        found.append(PatternTable(parts[0].share, parts[0].rounds, latency, number, link, flows))
    return tuple(found)


def patterns_of(parts: Iterable[PatternTable]) -> tuple[Pattern, ...]:
    """Return the same of a single group."""
    return tuple(
        [
            Pattern(
                tuple(zip(part.link.tolist(), part.flows.tolist(), strict=True)),
                part.share,
                part.rounds,
                float(part.latency[0]),
            )
            for part in parts
        ]
    )


def _meets(phase: Phase) -> bool:
    if isinstance(phase.hops, Listed | Columned):
        return False
    return any(SWITCH in (hop.source, hop.target) for hop in phase.hops)


def _merged(parts: Iterable[PatternTable]) -> tuple[PatternTable, ...] | None:
    """Activities after each other that load the links alike become one; None where only those of some groups do."""
    found: list[PatternTable] = []
    for part in parts:
        last = found[-1] if found else None
        if last is None or last.share != part.share or not np.array_equal(last.latency, part.latency):
            found.append(part)
        elif last is part or last.name == part.name:
            found[-1] = replace(last, rounds=last.rounds + part.rounds)
        elif _some_alike(last, part):
            return None
        else:
            found.append(part)
    return tuple(found)


def _some_alike(one: PatternTable, other: PatternTable) -> bool:
    """May there be a group whose two activities load the links alike?"""
    count = len(one.latency)
    rows, others = (np.bincount(part.group, minlength=count) for part in (one, other))
    links, other_links = (np.bincount(part.group, part.link, count) for part in (one, other))
    return bool(((rows == others) & (links == other_links)).any())


def _rounds(fabric: Fabric, members: Ints, phase: Phase, known: dict[bytes, PatternTable]) -> PatternTable:
    """A phase."""
    hops = HopColumns.of([phase])
    columns = (hops.source, hops.target, hops.relay, hops.flow, hops.weight, np.array([hops.share, phase.rounds > 1]))
    name = b"".join(column.tobytes() for column in columns)
    if name in known:
        return replace(known[name], rounds=phase.rounds)
    hop, link, fraction, latencies = hops.ways(fabric, members)
    latency = _latency(phase, latencies.reshape(len(members), -1))
    found = known[name] = PatternTable(hops.share, phase.rounds, latency, *usages(hops, members, hop, link, fraction))
    return found


def _latency(phase: Phase, of_hops: Floats, which: Ints | None = None) -> Floats:
    """A round's, by group, from those of its hops; ``which`` of them each one is."""
    if phase.rounds == 1:
        return np.asarray(of_hops.max(axis=1))
    of_hops = of_hops if which is None else of_hops[:, which]
    found: Floats = np.cumsum(of_hops, axis=1)[:, -1] / of_hops.shape[1]  # added up in order, as sum() does
    return found


def _pipeline(fabric: Fabric, members: Ints, phases: Sequence[Phase], *, timed: bool) -> PatternTable:
    """Phases whose hops are all under way at once."""
    hops = HopColumns.of(phases)
    hop, link, fraction, latencies = hops.ways(fabric, members)
    source, target = ((hops.channel * members.shape[1] + end).tolist() for end in (hops.source, hops.target))
    slowest = np.zeros(len(members))
    for group, seconds in enumerate(latencies.reshape(len(members), -1).tolist() if timed else ()):
        reached = [0.0] * (1 + max(*source, *target))  # when the first byte is there, by channel and position
        for start, end, own in zip(source, target, seconds, strict=True):
            there = reached[start] + own
            if there > reached[end]:
                reached[end] = there
        slowest[group] = max(reached)
    return PatternTable(hops.share, 1, slowest, *usages(hops, members, hop, link, fraction))
