"""A job's programs as one sweep, an accelerator for replicas: every op once, for all ranks of its stage and many cases.

The rules are the engine's: an op follows the one before it on its lane and what it waits for; a collective begins when
its last member arrives.  All ranks of a stage run the same ops, so a thousand ranks take as many steps here as the
stages have ops, and two hundred cases hardly more than one.  Durations are given: links and kernels do not slow each
other down here.  Unknown kinds of work are rejected by name; ``studies.scopes`` lists the scenarios.

Times are arrays [case, place] of the ranks of a stage, or [case, group] where groups of neighbouring places have the
same time, as all ranks of a tensor-parallel group have after each of its collectives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from typing import Any, NamedTuple

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
Seconds = Callable[[int, int], Duration]
"""Function that returns the durations of an op, given its stage and its number.

Ops of a stage are numbered by lane, then by item, in the program's order."""
PROVED = (works.Compute, works.Collective, works.Timed, works.Transfer, works.Receive, works.Copy, works.Host)
"""The kinds of work that a sweep is proved for."""


class _Meeting(NamedTuple):
    """Nodes that meet; a node that meets no other is alone.

    ``members[group]`` are places of ranks in all nodes, concatenated; None if equal places of the nodes meet (a send
    and its receive).  ``groups`` is the number of groups if there is one node and its groups are neighbouring places,
    else 0.
    """

    nodes: tuple[int, ...]
    members: Ints | None = None
    groups: int = 0


@dataclass(slots=True)
class _Node:
    """An op of all ranks of a stage.  ``before``: nodes that end first, at the same place of their stage."""

    stage: int
    number: int
    before: list[int] = field(default_factory=list)
    meeting: _Meeting | None = None


class StageSweep:
    """The order in which the ops of a job can be timed; made once, used for many cases.

    ``ops[stage][number]`` is what a number means, with the item it belongs to; ``stage_ranks[stage][place]`` a rank.

    Raises InputError for ops that wait for each other for ever.
    """

    def __init__(self, programs: Sequence[StageProgram], layout: RankLayout) -> None:
        self.stage_ranks: list[Ints] = layout.stage_ranks()
        self.ops: list[list[tuple[Item, Op]]] = []
        self._nodes: list[_Node] = []
        self._link(programs, layout)
        self._order = _order(self._nodes)
        self._waiting = [0] * len(self._nodes)  # how many nodes wait for each
        for other in chain.from_iterable(node.before for node in self._nodes):
            self._waiting[other] += 1

    def __call__(self, seconds: Seconds, cases: int) -> Floats:
        """Return when the last op ends, in seconds, [case]."""
        ends: list[Any] = [None] * len(self._nodes)
        total, waiting = np.zeros(cases), self._waiting.copy()
        for meeting in self._order:
            for number, end in zip(meeting.nodes, self._ends(meeting, seconds, ends, cases), strict=True):
                if waiting[number]:
                    ends[number] = end
                else:
                    np.maximum(total, end.max(axis=1), out=total)
            for other in chain.from_iterable(self._nodes[number].before for number in meeting.nodes):
                waiting[other] -= 1
                if not waiting[other]:
                    ends[other] = None
        return total

    def _ends(self, meeting: _Meeting, seconds: Seconds, ends: Sequence[Any], cases: int) -> Iterator[Floats]:
        """Yield the ends of nodes that meet."""
        nodes = [self._nodes[number] for number in meeting.nodes]
        ready = [[ends[other] for other in node.before] or [np.zeros((cases, 1))] for node in nodes]
        if meeting.members is None:
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
        begin = _latest_of(ready)
        took = seconds(node.stage, node.number)
        scale, factor = took if isinstance(took, tuple) else (1.0, np.atleast_2d(took))
        if factor.shape[1] == 1:
            return np.asarray(begin + scale * factor)
        if len(factor) < len(begin):
            factor = np.repeat(factor, len(begin), axis=0)
        return add_product(begin, scale, np.ascontiguousarray(factor))

    def _link(self, programs: Sequence[StageProgram], layout: RankLayout) -> None:
        """Add the nodes in the order of the programs, what each waits for, and their meetings."""
        segments = SegmentOps(programs)
        for op in segments.ops:
            if type(op.work) not in PROVED:
                raise InputError(f"the sweep of replicas does not know {type(op.work).__name__}; use method events")
        columns = [OpColumns(program, segments, stage) for stage, program in enumerate(programs)]
        first = firsts([*map(len, columns)]).tolist()
        called: dict[tuple[Any, ...], list[int]] = {}
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
            for number, name in zip(meets.tolist(), own.meeting_names(meets), strict=True):
                work = self.ops[stage][number][1].work
                if work.axis or work.joins or work.parties(1) > 1:
                    called.setdefault((work.axis or "send", *name), []).append(first[stage] + number)
        shared = {axis: self._shared_groups(axis, layout) for axis in {name[0] for name in called} - {"send"}}
        for (axis, *_), numbers in called.items():
            for meeting in [_Meeting(tuple(numbers))] if axis == "send" else self._meet(axis, numbers, shared[axis]):
                for number in meeting.nodes:
                    self._nodes[number].meeting = meeting

    def _meet(self, axis: str, numbers: Sequence[int], shared: Sequence[_Meeting]) -> Iterator[_Meeting]:
        """Yield the meetings of ops of one name, one for the stages that share groups of its axis."""
        by_stage = {self._nodes[number].stage: number for number in numbers}
        assert len(by_stage) == len(numbers), axis
        for each in shared:
            if each.nodes[0] not in by_stage:
                continue
            if not by_stage.keys() >= set(each.nodes):
                raise InputError(f"ranks of stages {each.nodes} are to meet ({axis}), and some of them never do")
            yield each._replace(nodes=tuple(by_stage[stage] for stage in each.nodes))

    def _shared_groups(self, axis: str, layout: RankLayout) -> list[_Meeting]:
        """Return the groups of an axis by the stages that share them, whose numbers stand for nodes."""
        where = {
            rank: (stage, at) for stage, own in enumerate(self.stage_ranks) for at, rank in enumerate(own.tolist())
        }
        together: dict[tuple[int, ...], list[list[tuple[int, int]]]] = {}
        for group in layout.groups(axis):
            members = [where[rank] for rank in group.tolist()]
            together.setdefault(tuple(sorted({stage for stage, _ in members})), []).append(members)
        found = []
        for stages, groups in together.items():
            sizes = [len(self.stage_ranks[stage]) for stage in stages]
            first = dict(zip(stages, (np.cumsum(sizes) - sizes).tolist(), strict=True))
            places = np.array([[first[stage] + place for stage, place in members] for members in groups])
            neighbours = len(stages) == 1 and np.array_equal(places.ravel(), np.arange(sizes[0]))
            found.append(_Meeting(stages, places, len(groups) if neighbours else 0))
        return found


def _order(nodes: Sequence[_Node]) -> list[_Meeting]:
    """Return meetings so that each follows what its nodes wait for (Kahn's algorithm)."""
    missing, arrived = [len(node.before) for node in nodes], dict[int, int]()
    waiters: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        for other in node.before:
            waiters[other].append(number)
    order: list[_Meeting] = []
    free = [number for number, count in enumerate(missing) if not count]
    while free:
        number = free.pop()  # depth first: fresh times are in the caches
        meeting = nodes[number].meeting or _Meeting((number,))
        arrived[id(meeting)] = arrived.get(id(meeting), 0) + 1
        if arrived[id(meeting)] < len(meeting.nodes):
            continue
        order.append(meeting)
        for waiter in chain.from_iterable(waiters[done] for done in meeting.nodes):
            missing[waiter] -= 1
            if not missing[waiter]:
                free.append(waiter)
    if sum(len(meeting.nodes) for meeting in order) < len(nodes):
        raise InputError(f"{sum(map(bool, missing))} ops wait for each other, as the engine would say")
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
