"""Fast path for replicas: a job's programs as one sweep, each op once for all ranks of a stage and many cases.

The rules are the engine's: an op follows the one before it on its lane and what it waits for; a collective begins when
its last member arrives. All ranks of a stage run the same ops, so a thousand ranks take as many steps here as the
stages have ops, and two hundred cases hardly more than one. Durations are given: links and kernels do not slow each
other down here. Unknown kinds of work are rejected by name; ``studies.scopes`` lists the scenarios.

Times are arrays [case, place] of the ranks of a stage, or [case, group] where groups of neighbouring places have the
same time, as all ranks of a tensor-parallel group have after each of its collectives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from graphlib import CycleError, TopologicalSorter
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.errors import InputError
from simcluster.base.loops import add_product, latest_per_group
from simcluster.engine.op_columns import OpColumns, Segments
from simcluster.planning import works
from simcluster.planning.ops import Item, Op, StageProgram
from simcluster.planning.parallel import RankLayout

Duration = Floats | tuple[float, Floats]
"""Seconds [case, place], where a dimension of 1 applies to all; or one number of seconds and factors [case, place]."""
Seconds = Callable[[int, int], Duration]
"""Function that returns the durations of an op, given its stage and its number.

Ops of a stage are numbered by lane, then by item, in the program's order."""
PROVED = (
    works.Compute, works.Collective, works.FixedCollective, works.Transfer, works.Receive, works.Copy, works.HostWork
)  # fmt: skip
"""The kinds of work that a sweep is proved for."""


class _Meeting(NamedTuple):
    """Nodes (ops of a stage) that meet; a node without others is alone.

    ``members[group]`` are places of ranks in all nodes, concatenated; None if equal places of the nodes meet (a send
    and its receive). ``groups`` is the number of groups if there is one node and its groups are neighbouring places,
    else 0.
    """

    nodes: tuple[int, ...]
    members: Ints | None = None
    groups: int = 0


class StageSweep:
    """Order in which the ops of a job can be timed; made once, used for many cases.

    ``ops[stage][number]`` is what a number means, with the item it belongs to; ``stage_ranks[stage][place]`` a rank.

    Raises InputError for ops that wait for each other for ever.
    """

    def __init__(self, programs: Sequence[StageProgram], layout: RankLayout) -> None:
        self.stage_ranks: list[Ints] = layout.stage_ranks()
        self.ops: list[list[tuple[Item, Op]]] = []
        self._nodes: list[tuple[int, int]] = []  # the stage and the number of each op
        self._before: list[list[int]] = []  # the nodes that end first, at the same place of their stage
        self._order = self._sorted([*self._meetings(self._link(programs), layout)])
        self._waiting = np.bincount([*chain.from_iterable(self._before)], minlength=len(self._nodes)).tolist()

    def __call__(self, seconds: Seconds, cases: int) -> Floats:
        """Return the end (s) of the last op in each case."""
        ends: list[Any] = [None] * len(self._nodes)
        total, waiting = np.zeros(cases), self._waiting.copy()
        for meeting in self._order:
            for number, end in zip(meeting.nodes, self._ends(meeting, seconds, ends, cases), strict=True):
                if waiting[number]:
                    ends[number] = end
                else:
                    np.maximum(total, end.max(axis=1), out=total)
            for other in chain.from_iterable(self._before[number] for number in meeting.nodes):
                waiting[other] -= 1
                if not waiting[other]:
                    ends[other] = None
        return total

    def _ends(self, meeting: _Meeting, seconds: Seconds, ends: Sequence[Any], cases: int) -> Iterator[Floats]:
        nodes = meeting.nodes
        ready = [[ends[other] for other in self._before[node]] or [np.zeros((cases, 1))] for node in nodes]
        if meeting.members is None:
            yield from [self._end(nodes[0], [each for own in ready for each in own], seconds)] * len(nodes)
        elif meeting.groups:
            yield self._end(nodes[0], [_latest_of_groups(each, meeting.groups) for each in ready[0]], seconds)
        else:
            sizes = [len(self.stage_ranks[self._nodes[node][0]]) for node in nodes]
            wide = [_widen(_latest_of(own), size) for own, size in zip(ready, sizes, strict=True)]
            whole = np.concatenate(wide, axis=1)
            whole[:, meeting.members] = whole[:, meeting.members].max(axis=2)[:, :, None]
            for node, start in zip(nodes, np.split(whole, np.cumsum(sizes)[:-1], axis=1), strict=True):
                yield self._end(node, [np.ascontiguousarray(start)], seconds)

    def _end(self, node: int, ready: Sequence[Floats], seconds: Seconds) -> Floats:
        """Return the end time of a node that begins at the latest of the ``ready`` times."""
        begin, took = _latest_of(ready), seconds(*self._nodes[node])
        scale, factor = took if isinstance(took, tuple) else (1.0, np.atleast_2d(took))
        if factor.shape[1] == 1:
            return np.asarray(begin + scale * factor)
        if len(factor) < len(begin):
            factor = np.repeat(factor, len(begin), axis=0)
        return add_product(begin, scale, np.ascontiguousarray(factor))

    def _link(self, programs: Sequence[StageProgram]) -> dict[tuple[str, int], list[int]]:
        """Add a node per op with the nodes that it waits for; return the nodes that meet, by name."""
        segments = Segments()
        numbers = [segments.read(program)[0] for program in programs]
        columns = OpColumns(segments, np.array([[number, *numbers] for number in numbers]))
        for program, (begin, end) in zip(programs, pairwise(columns.op_first.tolist()), strict=True):
            items = chain.from_iterable(program.lanes.values())
            self.ops.append([(item, op) for item in items for op in item.segment.ops])
            self._nodes += [(len(self.ops) - 1, number) for number in range(end - begin)]
        ops = [op for of_stage in self.ops for _, op in of_stage]
        last: dict[int, int] = {}  # by lane
        for number, (op, lane) in enumerate(zip(ops, columns.lane.tolist(), strict=True)):
            if type(op.work) not in PROVED:
                raise InputError(f"the sweep of replicas does not know {type(op.work).__name__}; use method events")
            first, end = columns.wait_first[number:][:2]
            self._before.append([*([last[lane]] if lane in last else []), *columns.awaited[first:end].tolist()])
            last[lane] = number
        called: dict[tuple[str, int], list[int]] = {}
        meets = np.flatnonzero(columns.slot >= 0)
        for number, name in zip(meets.tolist(), columns.meeting_names(meets).tolist(), strict=True):
            work = ops[number].work
            if work.axis or work.joins or work.parties(1) > 1:
                called.setdefault((work.axis or "send", name), []).append(number)
        return called

    def _meetings(self, called: Mapping[tuple[str, int], Sequence[int]], layout: RankLayout) -> Iterator[_Meeting]:
        """Yield the meetings of nodes, one per set of stages that share groups of an axis; then single nodes."""
        shared = {axis: self._shared_groups(axis, layout) for axis in {name[0] for name in called} - {"send"}}
        alone = dict.fromkeys(range(len(self._nodes)))
        for (axis, _), numbers in called.items():
            by_stage = {self._nodes[number][0]: number for number in numbers}
            assert len(by_stage) == len(numbers), axis
            for each in shared.get(axis, [_Meeting(tuple(by_stage))]):
                if each.nodes[0] not in by_stage:
                    continue
                if not by_stage.keys() >= set(each.nodes):
                    raise InputError(f"ranks of stages {each.nodes} are to meet ({axis}), and some of them never do")
                meeting = each._replace(nodes=tuple([by_stage[stage] for stage in each.nodes]))
                yield meeting
                for number in meeting.nodes:
                    del alone[number]
        yield from (_Meeting((number,)) for number in alone)

    def _shared_groups(self, axis: str, layout: RankLayout) -> list[_Meeting]:
        """Return the groups of an axis by the stages that share them; stage numbers represent nodes."""
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

    def _sorted(self, meetings: Sequence[_Meeting]) -> list[_Meeting]:
        """Return meetings sorted so that each follows what it waits for, depth first to use caches well."""
        of_node = {node: number for number, each in enumerate(meetings) for node in each.nodes}
        sorter = TopologicalSorter[int]()
        for number, each in enumerate(meetings):
            sorter.add(number, *(of_node[other] for node in each.nodes for other in self._before[node]))
        try:
            sorter.prepare()
        except CycleError as error:
            raise InputError(f"{len(error.args[1]) - 1} ops wait for each other, as the engine would say") from None
        order, free = [], [*sorter.get_ready()]
        while free:
            number = free.pop()
            order.append(meetings[number])
            sorter.done(number)
            free += sorter.get_ready()
        return order


def _latest_of(times: Sequence[Floats]) -> Floats:
    """Return the elementwise latest of times, as wide as all of them need."""
    if len(times) == 1:
        return times[0]
    places = math.lcm(*(each.shape[1] for each in times))
    return reduce(np.maximum, [_widen(each, places) for each in times])


def _latest_of_groups(times: Floats, groups: int) -> Floats:
    """Return the latest time of every group of neighbouring places; times already per group stay as they are."""
    places = math.lcm(times.shape[1], groups)
    return latest_per_group(_widen(times, places), groups) if places > groups else times


def _widen(times: Floats, places: int) -> Floats:
    return times if times.shape[1] == places else np.repeat(times, places // times.shape[1], axis=1)
