"""A job's programs as one sweep, an accelerator for replicas: every op once, for all ranks of its stage and many cases.

The rules are the engine's: an op follows the one before it on its lane and what it waits for; a collective begins when
its last member arrives.  All ranks of a stage run the same ops, so a thousand ranks take as many steps here as the
stages have ops, and two hundred cases hardly more than one.  Durations are given: links and kernels do not slow each
other down here.  Unknown kinds of work are rejected by name; ``studies.whatif.chance_scope`` lists the scenarios.

Times are arrays [case, place] of the ranks of a stage, or [case, group] where groups of neighbouring places have the
same time, as all ranks of a tensor-parallel group have after each of its collectives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from typing import Any

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.errors import InputError
from simcluster.base.loops import add_product, latest_per_group
from simcluster.engine.op_columns import OpColumns, SegmentOps
from simcluster.engine.tables import firsts
from simcluster.planning import works
from simcluster.planning.ops import Item, Op, StageProgram
from simcluster.planning.parallel import RankLayout

Duration = Floats | tuple[float, Floats]
"""Seconds [case, place], where a dimension of 1 applies to all; or one number of seconds and factors [case, place]."""
Seconds = Callable[[int, int, Callable[[], Floats]], Duration]
"""Function that returns the durations of an op, given its stage, its number and a function that returns its start
[case, place].  Ops of a stage are numbered by lane, then by item, in the program's order."""


@dataclass(slots=True)
class _Node:
    """An op of all ranks of a stage.  ``before``: nodes that end first, at the same place of their stage; ``meeting``:
    the number of its meeting, -1 for none."""

    stage: int
    number: int
    before: list[int] = field(default_factory=list)
    meeting: int = -1


@dataclass(frozen=True, slots=True)
class _Meeting:
    """Nodes that meet.  ``members[group]`` are places of ranks in all nodes, concatenated; None if equal places of the
    nodes meet (a send and its receive).  ``groups`` is the number of groups if there is one node and its groups are
    neighbouring places, else 0."""

    nodes: tuple[int, ...]
    members: Ints | None
    groups: int


class StageSweep:
    """The order in which the ops of a job can be timed; made once, used for many cases.

    ``ops[stage][number]`` is what a number means, with the item it belongs to; ``stage_ranks[stage][place]`` a rank.

    Raises InputError for ops that wait for each other for ever.
    """

    def __init__(self, programs: Sequence[StageProgram], layout: RankLayout) -> None:
        self.stage_ranks: list[Ints] = layout.stage_ranks()
        self.ops: list[list[tuple[Item, Op]]] = []
        self._nodes: list[_Node] = []
        self._meetings: list[_Meeting] = []
        self._link(programs, layout)
        self._order = _order(self._nodes, self._meetings)
        self._waiting = [0] * len(self._nodes)  # how many nodes wait for each
        for node in self._nodes:
            for other in node.before:
                self._waiting[other] += 1

    def __call__(self, seconds: Seconds, cases: int) -> Floats:
        """Return when the last op ends, in seconds, [case]."""
        ends: list[Any] = [None] * len(self._nodes)
        total, waiting = np.zeros(cases), self._waiting.copy()
        for together in self._order:
            for number, end in zip(together, self._ends(together, seconds, ends, cases), strict=True):
                if waiting[number]:
                    ends[number] = end
                else:
                    np.maximum(total, end.max(axis=1), out=total)
            for number in together:
                for other in self._nodes[number].before:
                    waiting[other] -= 1
                    if not waiting[other]:
                        ends[other] = None
        return total

    # --- simulating -------------------------------------------------------------------------------------------------

    def _ends(self, together: Sequence[int], seconds: Seconds, ends: Sequence[Any], cases: int) -> Iterator[Floats]:
        """Yield the ends of nodes that meet, or of one alone."""
        nodes = [self._nodes[number] for number in together]
        ready = [[ends[other] for other in node.before] or [np.zeros((cases, 1))] for node in nodes]
        meeting = self._meetings[nodes[0].meeting] if nodes[0].meeting >= 0 else None
        if meeting is None or meeting.members is None:
            end = self._end(nodes[0], [each for own in ready for each in own], seconds)
            yield from [end] * len(nodes)
        elif meeting.groups:
            yield self._end(nodes[0], [_at_groups(each, meeting.groups) for each in ready[0]], seconds)
        else:
            sizes = [len(self.stage_ranks[node.stage]) for node in nodes]
            wide = [_widen(_latest_of(own), size) for own, size in zip(ready, sizes, strict=True)]
            whole = np.concatenate(wide, axis=1)
            whole[:, meeting.members] = whole[:, meeting.members].max(axis=2)[:, :, None]
            for node, start in zip(nodes, np.split(whole, np.cumsum(sizes)[:-1], axis=1), strict=True):
                yield self._end(node, [np.ascontiguousarray(start)], seconds)

    def _end(self, node: _Node, ready: Sequence[Floats], seconds: Seconds) -> Floats:
        """Return when a node ends that begins at the latest of the ``ready`` times."""
        begin, places = _latest_of(ready), len(self.stage_ranks[node.stage])
        took = seconds(node.stage, node.number, lambda: _widen(begin, places))
        scale, factor = took if isinstance(took, tuple) else (1.0, np.atleast_2d(took))
        if factor.shape[1] == 1:
            return np.asarray(begin + scale * factor)
        if len(factor) < len(begin):
            factor = np.repeat(factor, len(begin), axis=0)
        return add_product(begin, scale, np.ascontiguousarray(factor))

    # --- putting together -------------------------------------------------------------------------------------------

    def _link(self, programs: Sequence[StageProgram], layout: RankLayout) -> None:
        """Add the nodes in the order of the programs, what each waits for, and their meetings."""
        segments = SegmentOps(programs)
        for op in segments.ops:
            if type(op.work) not in PROVED:
                raise InputError(f"the sweep of replicas does not know {type(op.work).__name__}; use method events")
        columns = [OpColumns(program, segments, stage) for stage, program in enumerate(programs)]
        first = firsts([*map(len, columns)]).tolist()
        meeting: dict[tuple[Any, ...], list[int]] = {}
        for stage, own in enumerate(columns):
            items = list(chain.from_iterable(programs[stage].lanes.values()))
            pairs = zip(own.item.tolist(), own.place.tolist(), strict=True)
            self.ops.append([(items[item], segments.ops[place]) for item, place in pairs])
            nodes = [_Node(stage, number) for number in range(len(own))]
            self._nodes += nodes
            last: dict[int, int] = {}  # by lane
            for node, lane in zip(nodes, own.lane.tolist(), strict=True):
                node.before += [last[lane]] if lane in last else []
                last[lane] = first[stage] + node.number
            for number, other, whose in zip(*(column.tolist() for column in own.waits(columns)), strict=True):
                nodes[number].before.append(first[stage if whose < 0 else whose] + other)
            meets = np.flatnonzero(own.group >= 0)
            for number, called in zip(meets.tolist(), own.meeting_names(meets), strict=True):
                work = self.ops[stage][number][1].work
                if work.axis or work.joins or work.parties(1) > 1:
                    meeting.setdefault((work.axis or "send", *called), []).append(first[stage] + number)
        axes = {name[0] for name in meeting} - {"send"}
        shared = {axis: _groups_by_stages(axis, self.stage_ranks, layout) for axis in axes}
        for (axis, *_), numbers in meeting.items():
            sends = [_Meeting(tuple(numbers), None, 0)] if axis == "send" else []
            for each in sends or self._meet(axis, numbers, shared[axis]):
                for number in each.nodes:
                    self._nodes[number].meeting = len(self._meetings)
                self._meetings.append(each)

    def _meet(self, axis: str, numbers: Sequence[int], shared: _StageGroups) -> Iterator[_Meeting]:
        """Yield the meetings of ops of one name, one for the stages that share groups of its axis."""
        by_stage = {self._nodes[number].stage: number for number in numbers}
        assert len(by_stage) == len(numbers), axis
        for stages, members, groups in shared:
            if stages[0] not in by_stage:
                continue
            if not by_stage.keys() >= set(stages):
                raise InputError(f"ranks of stages {stages} are to meet ({axis}), and some of them never do")
            yield _Meeting(tuple(by_stage[stage] for stage in stages), members, groups)


PROVED = (works.Compute, works.Collective, works.Timed, works.Transfer, works.Receive, works.Copy, works.Host)
"""The kinds of work that a sweep is proved for."""


def _order(nodes: Sequence[_Node], meetings: Sequence[_Meeting]) -> list[tuple[int, ...]]:
    """Nodes so that each stands behind what it waits for; those that meet together (Kahn's algorithm)."""
    missing = [len(node.before) for node in nodes]
    absent = [len(meeting.nodes) for meeting in meetings]
    behind: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        for other in node.before:
            behind[other].append(number)
    order: list[tuple[int, ...]] = []
    free = [number for number, count in enumerate(missing) if not count]
    while free:
        number = free.pop()  # depth first: what is fresh in the caches is used
        together: tuple[int, ...] = (number,)
        meeting = nodes[number].meeting
        if meeting >= 0:
            absent[meeting] -= 1
            if absent[meeting]:
                continue
            together = meetings[meeting].nodes
        order.append(together)
        for done in together:
            for other in behind[done]:
                missing[other] -= 1
                if not missing[other]:
                    free.append(other)
    if sum(map(len, order)) < len(nodes):
        raise InputError(f"{sum(1 for count in missing if count)} ops wait for each other, as the engine would say")
    return order


def _latest_of(times: Sequence[Floats]) -> Floats:
    """Return the elementwise latest of times, as wide as all of them need."""
    if len(times) == 1:
        return times[0]
    places = math.lcm(*(each.shape[1] for each in times))
    return reduce(np.maximum, [_widen(each, places) for each in times])


def _at_groups(times: Floats, groups: int) -> Floats:
    """Return the latest time of every group of neighbours; times that are equal in whole groups stay as they are."""
    places = math.lcm(times.shape[1], groups)
    return latest_per_group(_widen(times, places), groups) if places > groups else times


def _widen(times: Floats, places: int) -> Floats:
    return times if times.shape[1] == places else np.repeat(times, places // times.shape[1], axis=1)


_StageGroups = list[tuple[tuple[int, ...], Ints, int]]
"""Stages that share groups of an axis, with ``members`` and ``groups`` as in ``_Meeting``."""


def _groups_by_stages(axis: str, stage_ranks: Sequence[Ints], layout: RankLayout) -> _StageGroups:
    """Return the groups of an axis, as places of ranks counted through their stages."""
    where = {rank: (stage, place) for stage, own in enumerate(stage_ranks) for place, rank in enumerate(own.tolist())}
    together: dict[tuple[int, ...], list[list[tuple[int, int]]]] = {}
    for group in layout.groups(axis):
        members = [where[rank] for rank in group.tolist()]
        together.setdefault(tuple(sorted({stage for stage, _ in members})), []).append(members)
    found = []
    for stages, groups in together.items():
        sizes = [len(stage_ranks[stage]) for stage in stages]
        first = dict(zip(stages, (np.cumsum(sizes) - sizes).tolist(), strict=True))
        places = np.array([[first[stage] + place for stage, place in members] for members in groups])
        neighbours = len(stages) == 1 and np.array_equal(places.ravel(), np.arange(len(stage_ranks[stages[0]])))
        found.append((stages, places, len(groups) if neighbours else 0))
    return found
