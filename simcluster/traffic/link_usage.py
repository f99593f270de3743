"""Fast path: link usage of many groups at once, from the phases of a collective, as ``traffic.patterns`` for one group.

Groups of equal layout run the same hops between the same positions; only the GPUs differ. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Floats, Ints, concat_ranges
from simcluster.base.link_columns import PerLink
from simcluster.collectives.description import SWITCH, ColumnHops, HopList, HopTable, Phase
from simcluster.traffic.hop_columns import UNITS, HopColumns, load_chained_trees
from simcluster.traffic.traffic import Fabric, Pattern, patterns


@dataclass(frozen=True)
class PatternTable:
    """One activity of many groups: share and rounds of a ``Pattern``, a latency (s) per group, link usages in columns.

    Row i states that ``flows[i]`` flows of group ``group[i]`` cross ``link[i]``; ascending.
    """

    share: float
    rounds: int
    latency: Floats
    group: Ints
    link: Ints
    flows: Floats

    def of_groups(self, those: Ints) -> PatternTable:
        """Return the table of some of the groups, renumbered from 0."""
        if len(those) == len(self.latency):
            return self
        begin, end = np.searchsorted(self.group, [those, those + 1])
        together = those[-1] - those[0] < len(those)
        rows = slice(begin[0], end[-1]) if together else np.repeat(begin, end - begin) + concat_ranges(end - begin)
        number = np.repeat(np.arange(len(those)), end - begin)
        return PatternTable(self.share, self.rounds, self.latency[those], number, self.link[rows], self.flows[rows])

    def on_links(self, links: Ints) -> Floats:
        """Return the flows of a single group on some links."""
        place = np.searchsorted(self.link, links)
        there = np.append(self.link, -1)[place] == links
        return np.where(there, np.append(self.flows, 0.0)[place], 0.0)

    @property
    def name(self) -> bytes:
        """Key that is equal for tables that use the links equally, in all groups."""
        return b"".join([self.group.tobytes(), self.link.tobytes(), self.flows.tobytes()])


class ClusterWidePattern(PatternTable):
    """Activity of a single group that uses most links: flows on all of them in ``load``; columns are made on demand."""

    load: PerLink

    def __init__(self, share: float, load: PerLink) -> None:
        self.__dict__.update(share=share, rounds=1, latency=np.zeros(1), load=load)

    @cached_property
    def link(self) -> Ints:
        """Links that it uses."""
        return np.flatnonzero(self.load.all)

    @cached_property
    def flows(self) -> Floats:
        """Flows on each used link."""
        return np.asarray(self.load.all[self.link])

    @cached_property
    def group(self) -> Ints:
        """Zeros: there is only one group."""
        return np.zeros_like(self.link)

    def on_links(self, links: Ints) -> Floats:
        """Return the flows of the group on some links."""
        return self.load.of(links)


class WindowCut(NamedTuple):
    """Window with the first ``ranks`` of each group, and the ``counterpart`` in it of every link."""

    ranks: int
    counterpart: PerLink


def usage_at_once(
    fabric: Fabric, members: Ints, phases: Sequence[Phase], *, timed: bool = True, cut: WindowCut | None = None,
    known: dict[bytes, PatternTable] | None = None,
) -> tuple[PatternTable, ...] | None:  # fmt: skip
    """Return the activities of many groups (rows of ``members``), merging consecutive phases with equal link loads.

    ``timed`` asks for latencies; without it they may be 0. ``known`` rounds of these groups are reused. With a ``cut``
    the flows are those on links of the window. None where groups need to be handled one by one, where some merge phases
    that others do not, or where the hops do not shift onto themselves as the groups do.
    """
    chained = None if timed or cut or len(members) > 1 else load_chained_trees(fabric, members[0], phases)
    if chained is not None:
        return (ClusterWidePattern(*chained),)
    busy = [phase for phase in phases if phase.hops]
    if any(isinstance(phase.hops, HopTable) or (cut and phase.pipelined) or _meets_in_switch(phase) for phase in busy):
        return None
    found: list[PatternTable] = []
    known = {} if known is None else known
    for pipelined, run in groupby(busy, key=lambda phase: phase.pipelined):
        if pipelined:
            found.append(_pipeline_table(fabric, members, list(run), timed=timed))
            continue
        for phase in run:
            part = _rounds_table(fabric, members, phase, known, cut)
            if part is None:
                return None
            found.append(part)
    return _merge_tables(found)


def usage_one_by_one(fabric: Fabric, members: Ints, phases: Sequence[Phase]) -> tuple[PatternTable, ...]:
    """Return the activities of many groups (rows of ``members``), computed group by group.

    Where some merge phases and others do not, none does: each phase is separate.
    """
    found = [patterns(fabric, ranks, phases) for ranks in members.tolist()]
    if len({tuple((part.share, part.rounds) for part in parts) for parts in found}) == 1:
        return tabulate_patterns(found)
    tables = [tabulate_patterns(patterns(fabric, ranks, [phase]) for ranks in members.tolist()) for phase in phases]
    return tuple(chain.from_iterable(tables))


def tabulate_patterns(group: Iterable[Sequence[Pattern]]) -> tuple[PatternTable, ...]:
    """Return tables of activities from the patterns of every group, which must have equal counts, shares and rounds."""
    found = []
    for parts in zip(*group, strict=True):
        usages = [part.usage for part in parts]
        number = np.repeat(np.arange(len(parts)), list(map(len, usages)))
        link = np.array([link for usage in usages for link, _ in usage], dtype=np.int64)
        flows = np.array([flows for usage in usages for _, flows in usage], dtype=np.float64)
        latency = np.array([part.latency for part in parts])
        found.append(PatternTable(parts[0].share, parts[0].rounds, latency, number, link, flows))
    return tuple(found)


def patterns_from_tables(parts: Iterable[PatternTable]) -> tuple[Pattern, ...]:
    """Return the patterns of a single group from its tables of activities."""
    found = []
    for part in parts:
        usage = tuple(zip(part.link.tolist(), part.flows.tolist(), strict=True))
        found.append(Pattern(usage, part.share, part.rounds, float(part.latency[0])))
    return tuple(found)


def _meets_in_switch(phase: Phase) -> bool:
    if isinstance(phase.hops, HopList | ColumnHops):
        return False
    return any(SWITCH in (hop.source, hop.target) for hop in phase.hops)


def _merge_tables(parts: Iterable[PatternTable]) -> tuple[PatternTable, ...] | None:
    """Merge consecutive activities that load the links equally; None where only some groups have equal ones."""
    found: list[PatternTable] = []
    for part in parts:
        last = found[-1] if found else None
        if last is None or last.share != part.share or not np.array_equal(last.latency, part.latency):
            found.append(part)
        elif last is part or last.name == part.name:
            found[-1] = replace(last, rounds=last.rounds + part.rounds)
        else:
            sums = [
                [np.bincount(each.group, weights, len(each.latency)) for weights in (None, each.link)]
                for each in (last, part)
            ]
            if (np.array(sums[0]) == sums[1]).all(axis=0).any():  # there may be a group with equal loads
                return None
            found.append(part)
    return tuple(found)


def _rounds_table(
    fabric: Fabric, members: Ints, phase: Phase, known: dict[bytes, PatternTable], cut: WindowCut | None
) -> PatternTable | None:
    hops, becomes = HopColumns.of([phase]), None
    columns = (hops.source, hops.target, hops.relay, hops.flow, hops.weight, np.array([hops.share, phase.rounds > 1]))
    name = b"".join(column.tobytes() for column in columns)
    if name in known:
        return replace(known[name], rounds=phase.rounds)
    if cut is not None:
        turned = hops.turned_back(members.shape[1], cut.ranks)
        if turned is None:
            return None
        hops, becomes = turned
    hop, link, fraction, latencies = hops.ways(fabric, members)
    if cut is not None:
        link = cut.counterpart.of(link).astype(np.int64)
        if (fraction * UNITS % 1.0).any() or (link < 0).any():
            return None
    of_hops = latencies.reshape(len(members), -1)
    if phase.rounds == 1:
        latency = of_hops.max(axis=1)
    else:  # added up in order, as sum() does
        of_hops = of_hops if becomes is None else of_hops[:, becomes]
        latency = np.cumsum(of_hops, axis=1)[:, -1] / of_hops.shape[1]
    found = PatternTable(hops.share, phase.rounds, latency, *hops.usages(hop, link, fraction))
    known[name] = found
    return found


def _pipeline_table(fabric: Fabric, members: Ints, phases: Sequence[Phase], *, timed: bool) -> PatternTable:
    """Return the activity of phases whose hops are all in flight at once."""
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
    return PatternTable(hops.share, 1, slowest, *hops.usages(hop, link, fraction))
