"""Fast path for replicas: time each op for all ranks of a stage and many random draws at once, without events.

The rules are the engine's: an op follows the one before it on its lane and what it waits for; a collective begins when
its last member arrives. All ranks of a stage run the same ops, so a thousand ranks take as many steps here as the
stages have ops, and two hundred cases hardly more than one. Durations are given: links and kernels do not slow each
other down here. Unknown kinds of work are rejected by name; ``studies.fast_path_scopes`` lists the scenarios.

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
from simcluster.base.loops import add_scaled_factors, latest_end_per_group
from simcluster.engine.op_columns import OpColumns, SegmentTable
from simcluster.planning import work_kinds
from simcluster.planning.ops import HostWork, Op, StageProgram, WorkItem
from simcluster.planning.rank_grid import RankLayout

Duration = Floats | tuple[float, Floats]
"""Seconds [case, place], where a dimension of 1 applies to all; or one number of seconds and factors [case, place]."""
Seconds = Callable[[int, int], Duration]
"""Function that returns the durations of an op, given its stage and its number.

Ops of a stage are numbered by lane, then by item, in the program's order."""
PROVED = (
    work_kinds.Compute, work_kinds.Collective, work_kinds.FixedCollective, work_kinds.StageSend,
    work_kinds.StageReceive, work_kinds.Copy, HostWork,
)  # fmt: skip
"""Kinds of work for which the sweep is proved equal to the engine."""


class _Rendezvous(NamedTuple):
    """Ops, one per stage, that start together as members of a collective or as a send and its receive.

    ``members[group]`` are places of ranks in all nodes, concatenated; None if equal places of the nodes meet (a send
    and its receive). ``groups`` is the number of groups if there is one node and its groups are neighbouring places,
    else 0.
    """

    nodes: tuple[int, ...]
    members: Ints | None = None
    groups: int = 0


class BatchStepTimer:
    """Timer of a job's step for many sets of op durations (cases) at once, with the ops' order computed once.

    ``ops[stage][number]`` is what a number means, with the item it belongs to; ``stage_ranks[stage][place]`` a rank.

    Raises InputError for ops that wait for each other for ever.
    """

    def __init__(self, programs: Sequence[StageProgram], layout: RankLayout) -> None:
        self.stage_ranks: list[Ints] = layout.stage_ranks()
        self.ops: list[list[tuple[WorkItem, Op]]] = []
        self._nodes: list[tuple[int, int]] = []  # the stage and the number of each op
        self._before: list[list[int]] = []  # the nodes that end first, at the same place of their stage
        self._order = self._sort_by_dependency([*self._find_rendezvous(self._add_nodes(programs), layout)])
        self._waiting = np.bincount([*chain.from_iterable(self._before)], minlength=len(self._nodes)).tolist()

    def __call__(self, seconds: Seconds, cases: int) -> Floats:
        """Return the step's end time (s) for each of ``cases`` sets of op durations."""
        ends: list[Any] = [None] * len(self._nodes)
        total, waiting = np.zeros(cases), self._waiting.copy()
        for meeting in self._order:
            for number, end in zip(meeting.nodes, self._end_times(meeting, seconds, ends, cases), strict=True):
                if waiting[number]:
                    ends[number] = end
                else:
                    np.maximum(total, end.max(axis=1), out=total)
            for other in chain.from_iterable(self._before[number] for number in meeting.nodes):
                waiting[other] -= 1
                if not waiting[other]:
                    ends[other] = None
        return total

    def _end_times(self, meeting: _Rendezvous, seconds: Seconds, ends: Sequence[Any], cases: int) -> Iterator[Floats]:
        nodes = meeting.nodes
        ready = [[ends[other] for other in self._before[node]] or [np.zeros((cases, 1))] for node in nodes]
        if meeting.members is None:
            yield from [self._end_time(nodes[0], [each for own in ready for each in own], seconds)] * len(nodes)
        elif meeting.groups:
            yield self._end_time(nodes[0], [_latest_per_group(each, meeting.groups) for each in ready[0]], seconds)
        else:
            sizes = [len(self.stage_ranks[self._nodes[node][0]]) for node in nodes]
            wide = [_repeat_columns(_elementwise_latest(own), size) for own, size in zip(ready, sizes, strict=True)]
            whole = np.concatenate(wide, axis=1)
            whole[:, meeting.members] = whole[:, meeting.members].max(axis=2)[:, :, None]
            for node, start in zip(nodes, np.split(whole, np.cumsum(sizes)[:-1], axis=1), strict=True):
                yield self._end_time(node, [np.ascontiguousarray(start)], seconds)

    def _end_time(self, node: int, ready: Sequence[Floats], seconds: Seconds) -> Floats:
        """Return the end time of a node (op of a stage) that begins at the maximum of the ``ready`` times."""
        begin, took = _elementwise_latest(ready), seconds(*self._nodes[node])
        scale, factor = took if isinstance(took, tuple) else (1.0, np.atleast_2d(took))
        if factor.shape[1] == 1:
            return np.asarray(begin + scale * factor)
        if len(factor) < len(begin):
            factor = np.repeat(factor, len(begin), axis=0)
        return add_scaled_factors(begin, scale, np.ascontiguousarray(factor))

    def _add_nodes(self, programs: Sequence[StageProgram]) -> dict[tuple[str, int], list[int]]:
        """Add one node per op with its dependencies; return the nodes of each communication by name."""
        segments = SegmentTable()
        numbers = [segments.add_program(program)[0] for program in programs]
        columns = OpColumns(segments, np.array([[number, *numbers] for number in numbers]))
        for program, (begin, end) in zip(programs, pairwise(columns.op_first.tolist()), strict=True):
            items = chain.from_iterable(program.lanes.values())
            self.ops.append([(item, op) for item in items for op in item.segment.ops])
            self._nodes += [(len(self.ops) - 1, number) for number in range(end - begin)]
        ops = [op for of_stage in self.ops for _, op in of_stage]
        last: dict[int, int] = {}  # by lane
        for number, (op, lane) in enumerate(zip(ops, columns.lane.tolist(), strict=True)):
            if type(op.work) not in PROVED:
                raise InputError(f"the replica sweep does not support {type(op.work).__name__} ops; use method events")
            first, end = columns.wait_first[number:][:2]
            self._before.append([*([last[lane]] if lane in last else []), *columns.awaited[first:end].tolist()])
            last[lane] = number
        called: dict[tuple[str, int], list[int]] = {}
        meets = np.flatnonzero(columns.slot >= 0)
        for number, name in zip(meets.tolist(), columns.rendezvous_keys(meets).tolist(), strict=True):
            work = ops[number].work
            if work.axis or work.joins or work.arrivals_needed(1) > 1:
                called.setdefault((work.axis or "send", name), []).append(number)
        return called

    def _find_rendezvous(self, calls: Mapping[tuple[str, int], list[int]], layout: RankLayout) -> Iterator[_Rendezvous]:
        """Yield a rendezvous for each communication and set of stages that share groups, then one per remaining op."""
        shared = {axis: self._groups_by_shared_stages(axis, layout) for axis in {name[0] for name in calls} - {"send"}}
        alone = dict.fromkeys(range(len(self._nodes)))
        for (axis, _), numbers in calls.items():
            by_stage = {self._nodes[number][0]: number for number in numbers}
            assert len(by_stage) == len(numbers), axis
            for each in shared.get(axis, [_Rendezvous(tuple(by_stage))]):
                if each.nodes[0] not in by_stage:
                    continue
                if not by_stage.keys() >= set(each.nodes):
                    raise InputError(f"not all stages of {each.nodes} run a collective on axis {axis}; add it to all")
                meeting = each._replace(nodes=tuple([by_stage[stage] for stage in each.nodes]))
                yield meeting
                for number in meeting.nodes:
                    del alone[number]
        yield from (_Rendezvous((number,)) for number in alone)

    def _groups_by_shared_stages(self, axis: str, layout: RankLayout) -> list[_Rendezvous]:
        """Return one rendezvous per set of stages that groups of an axis span; ``nodes`` has these stages."""
        where = {rank: (stage, i) for stage, own in enumerate(self.stage_ranks) for i, rank in enumerate(own.tolist())}
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
            found.append(_Rendezvous(stages, places, len(groups) if neighbours else 0))
        return found

    def _sort_by_dependency(self, meetings: Sequence[_Rendezvous]) -> list[_Rendezvous]:
        """Return the communications in dependency order, depth first for cache locality."""
        of_node = {node: number for number, each in enumerate(meetings) for node in each.nodes}
        sorter = TopologicalSorter[int]()
        for number, each in enumerate(meetings):
            sorter.add(number, *(of_node[other] for node in each.nodes for other in self._before[node]))
        try:
            sorter.prepare()
        except CycleError as error:
            raise InputError(f"{len(error.args[1]) - 1} ops wait for each other; give every send a receive") from None
        order, free = [], [*sorter.get_ready()]
        while free:
            number = free.pop()
            order.append(meetings[number])
            sorter.done(number)
            free += sorter.get_ready()
        return order


def _elementwise_latest(times: Sequence[Floats]) -> Floats:
    """Return the elementwise maximum of arrays of times; a narrow array has one column per group of columns."""
    if len(times) == 1:
        return times[0]
    places = math.lcm(*(each.shape[1] for each in times))
    return reduce(np.maximum, [_repeat_columns(each, places) for each in times])


def _latest_per_group(times: Floats, groups: int) -> Floats:
    """Return the maximum time per group of adjacent columns; arrays that are per group stay unchanged."""
    places = math.lcm(times.shape[1], groups)
    return latest_end_per_group(_repeat_columns(times, places), groups) if places > groups else times


def _repeat_columns(times: Floats, places: int) -> Floats:
    return times if times.shape[1] == places else np.repeat(times, places // times.shape[1], axis=1)
