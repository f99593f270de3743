"""Fast path: link usage of many groups at once, from the phases of their collective. No side effects.

Groups of equal layout run the same hops between the same positions; only the GPUs differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Floats, Ints, concat_ranges
from simcluster.base.link_columns import LinkColumn
from simcluster.collectives.description import SWITCH, BlockwiseHops, HopList, LazyHopList, Phase
from simcluster.traffic.hop_columns import UNITS, HopColumns, find_double_tree_loads
from simcluster.traffic.traffic import Fabric, LinkPattern, link_patterns


@dataclass(frozen=True)
class PatternTable:
    """Traffic pattern common to many groups: equal share and rounds; latency (s) and link flows of each group.

    Row i states that ``flows[i]`` flows of group ``group[i]`` cross ``link[i]``; ascending.
    """

    share: float
    rounds: int
    latency: Floats
    groups: Ints
    links: Ints
    flows: Floats

    def select_groups(self, those: Ints) -> PatternTable:
        """Return the table of only these groups, renumbered from 0."""
        if len(those) == len(self.latency):
            return self
        begin, end = np.searchsorted(self.groups, [those, those + 1])
        together = those[-1] - those[0] < len(those)
        rows = slice(begin[0], end[-1]) if together else np.repeat(begin, end - begin) + concat_ranges(end - begin)
        number = np.repeat(np.arange(len(those)), end - begin)
        return PatternTable(self.share, self.rounds, self.latency[those], number, self.links[rows], self.flows[rows])

    def flows_on_links(self, links: Ints) -> Floats:
        """Return a single group's flows on each of these links."""
        place = np.searchsorted(self.links, links)
        there = np.append(self.links, -1)[place] == links
        return np.where(there, np.append(self.flows, 0.0)[place], 0.0)

    @property
    def usage_key(self) -> bytes:
        """Hashable key of the link usage, equal for tables with equal flows in all groups."""
        return b"".join([self.groups.tobytes(), self.links.tobytes(), self.flows.tobytes()])


class ClusterWidePattern(PatternTable):
    """Traffic pattern of a group that uses most links of the cluster; ``load`` has the flows on every link."""

    load: LinkColumn

    def __init__(self, share: float, load: LinkColumn) -> None:
        self.__dict__.update(share=share, rounds=1, latency=np.zeros(1), load=load)

    @cached_property
    def links(self) -> Ints:
        """Links that the group uses."""
        return np.flatnonzero(self.load.all_values)

    @cached_property
    def flows(self) -> Floats:
        """Flows on each of the used links."""
        return np.asarray(self.load.all_values[self.links])

    @cached_property
    def groups(self) -> Ints:
        """Group number of each row: always 0, because there is one group."""
        return np.zeros_like(self.links)

    def flows_on_links(self, links: Ints) -> Floats:
        return self.load.values_at(links)


class GroupWindow(NamedTuple):
    """Window (representative part of a job): the first ranks of each group, and each link's equivalent in it."""

    ranks: int
    counterpart: LinkColumn


def batch_link_usage(
    fabric: Fabric, members: Ints, phases: Sequence[Phase], *, timed: bool = True, cut: GroupWindow | None = None,
    known: dict[bytes, PatternTable] | None = None,
) -> tuple[PatternTable, ...] | None:  # fmt: skip
    """Return the traffic patterns of many groups (rows of ranks) at once; None if groups must be handled singly.

    ``timed`` asks for latencies; without it they may be 0. ``known`` rounds of these groups are reused. With a ``cut``
    the flows are those on links of the window. None where groups need to be handled one by one, where some merge phases
    that others do not, or where the hops do not shift onto themselves as the groups do.
    """
    chained = None if timed or cut or len(members) > 1 else find_double_tree_loads(fabric, members[0], phases)
    if chained is not None:
        return (ClusterWidePattern(*chained),)
    busy = [phase for phase in phases if phase.hops]
    if any(isinstance(each.hops, BlockwiseHops) or (cut and each.pipelined) or _has_switch_hops(each) for each in busy):
        return None
    found: list[PatternTable] = []
    known = {} if known is None else known
    for pipelined, run in groupby(busy, key=lambda phase: phase.pipelined):
        if pipelined:
            found.append(_tabulate_pipeline(fabric, members, list(run), timed=timed))
            continue
        for phase in run:
            part = _tabulate_rounds(fabric, members, phase, known, cut)
            if part is None:
                return None
            found.append(part)
    return _merge_tables(found)


def link_usage_one_by_one(fabric: Fabric, members: Ints, phases: Sequence[Phase]) -> tuple[PatternTable, ...]:
    """Return the traffic patterns of many groups (rows of ``members``), computed group by group.

    Where some merge phases and others do not, none does: each phase is separate.
    """
    found = [link_patterns(fabric, ranks, phases) for ranks in members.tolist()]
    if len({tuple((part.share, part.rounds) for part in parts) for parts in found}) == 1:
        return tabulate_patterns(found)
    tables = [tabulate_patterns(link_patterns(fabric, ranks, [each]) for ranks in members.tolist()) for each in phases]
    return tuple(chain.from_iterable(tables))


def tabulate_patterns(by_group: Iterable[Sequence[LinkPattern]]) -> tuple[PatternTable, ...]:
    """Convert each group's traffic patterns to tables; all groups must have equal numbers, shares and rounds."""
    found = []
    for parts in zip(*by_group, strict=True):
        usages = [part.usage for part in parts]
        number = np.repeat(np.arange(len(parts)), list(map(len, usages)))
        link = np.array([link for usage in usages for link, _ in usage], dtype=np.int64)
        flows = np.array([flows for usage in usages for _, flows in usage], dtype=np.float64)
        latency = np.array([part.latency for part in parts])
        found.append(PatternTable(parts[0].share, parts[0].rounds, latency, number, link, flows))
    return tuple(found)


def patterns_from_tables(parts: Iterable[PatternTable]) -> tuple[LinkPattern, ...]:
    """Convert the tables of a single group back to traffic patterns."""
    found = []
    for part in parts:
        usage = tuple(zip(part.links.tolist(), part.flows.tolist(), strict=True))
        found.append(LinkPattern(usage, part.share, part.rounds, float(part.latency[0])))
    return tuple(found)


def _has_switch_hops(phase: Phase) -> bool:
    if isinstance(phase.hops, HopList | LazyHopList):
        return False
    return any(SWITCH in (hop.source, hop.target) for hop in phase.hops)


def _merge_tables(parts: Iterable[PatternTable]) -> tuple[PatternTable, ...] | None:
    """Merge adjacent tables whose link usage is equal in all groups; return None if only some groups are equal."""
    found: list[PatternTable] = []
    for part in parts:
        last = found[-1] if found else None
        if last is None or last.share != part.share or not np.array_equal(last.latency, part.latency):
            found.append(part)
        elif last is part or last.usage_key == part.usage_key:
            found[-1] = replace(last, rounds=last.rounds + part.rounds)
        else:
            sums = [
                [np.bincount(each.groups, weights, len(each.latency)) for weights in (None, each.links)]
                for each in (last, part)
            ]
            if (np.array(sums[0]) == sums[1]).all(axis=0).any():  # there may be a group with equal loads
                return None
            found.append(part)
    return tuple(found)


def _tabulate_rounds(
    fabric: Fabric, members: Ints, phase: Phase, known: dict[bytes, PatternTable], cut: GroupWindow | None
) -> PatternTable | None:
    hops, becomes = HopColumns.from_phases([phase]), None
    columns = (hops.source, hops.target, hops.relay, hops.flow, hops.weight, np.array([hops.share, phase.rounds > 1]))
    name = b"".join(column.tobytes() for column in columns)
    if name in known:
        return replace(known[name], rounds=phase.rounds)
    if cut is not None:
        turned = hops.fold_into_window(members.shape[1], cut.ranks)
        if turned is None:
            return None
        hops, becomes = turned
    hop, link, fraction, latencies = hops.hop_routes(fabric, members)
    if cut is not None:
        link = cut.counterpart.values_at(link).astype(np.int64)
        if (fraction * UNITS % 1.0).any() or (link < 0).any():
            return None
    of_hops = latencies.reshape(len(members), -1)
    if phase.rounds == 1:
        latency = of_hops.max(axis=1)
    else:  # added up in order, as sum() does
        of_hops = of_hops if becomes is None else of_hops[:, becomes]
        latency = np.cumsum(of_hops, axis=1)[:, -1] / of_hops.shape[1]
    found = PatternTable(hops.share, phase.rounds, latency, *hops.sum_group_flows(hop, link, fraction))
    known[name] = found
    return found


def _tabulate_pipeline(fabric: Fabric, members: Ints, phases: Sequence[Phase], *, timed: bool) -> PatternTable:
    """Return the traffic pattern of pipelined phases, whose hops all run at the same time."""
    hops = HopColumns.from_phases(phases)
    hop, link, fraction, latencies = hops.hop_routes(fabric, members)
    source, target = ((hops.channel * members.shape[1] + end).tolist() for end in (hops.source, hops.target))
    slowest = np.zeros(len(members))
    for group, seconds in enumerate(latencies.reshape(len(members), -1).tolist() if timed else ()):
        reached = [0.0] * (1 + max(*source, *target))  # when the first byte is there, by channel and position
        for start, end, own in zip(source, target, seconds, strict=True):
            there = reached[start] + own
            if there > reached[end]:
                reached[end] = there
        slowest[group] = max(reached)
    return PatternTable(hops.share, 1, slowest, *hops.sum_group_flows(hop, link, fraction))
