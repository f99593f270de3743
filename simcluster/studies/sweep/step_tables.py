"""Tables for the compiled engine of a step whose ranks are one per stage.

The program is explicit: one template, and one instance with a rank for each stage.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Int32s
from simcluster.base.kept import Kept
from simcluster.engine.events import Engine
from simcluster.engine.run import simulate_tables, simulate_until
from simcluster.engine.tables import (
    CommunicationKind,
    CommunicationTables,
    Groups,
    Instances,
    Tables,
    Templates,
    communication_tables,
    firsts,
    int32s,
    one_instance,
)
from simcluster.planning.ops import MAIN
from simcluster.studies.sweep.order import Items, ranges
from simcluster.traffic.traffic import Traffic

_FEW = 1500
"""The most ops of a main part that is simulated again per variant: to make an engine takes as long as 1,300 ops."""


class CommunicationCost(NamedTuple):
    """A collective or send between the representatives of stages, as ``engine.tables.Kinds`` has it.

    It interferes with computation on ``stages``.
    """

    parties: int
    traffics: tuple[Traffic, ...]
    pressure: float = 0.0
    drag: float = 0.0
    stages: tuple[int, ...] = ()

    @property
    def interferes(self) -> bool:
        """Return whether it slows down computation, or is slowed down by it."""
        return self.pressure > 0 or self.drag > 0

    def alone_seconds(self, capacity: Sequence[float]) -> float:
        """Return the duration with all links to itself."""
        return sum(
            traffic.alone_seconds(capacity) if traffic.round_bytes else traffic.latency_seconds
            for traffic in self.traffics
        )


class TimedOp(NamedTuple):
    """One op and its cost: ``seconds`` at full speed, or a ``communication``.

    ``after`` lists earlier ops of the same work that it waits for, besides the one before it on its ``lane``.
    """

    seconds: float = 0.0
    sensitivity: float = -1.0
    communication: CommunicationCost | None = None
    lane: str = MAIN
    after: tuple[int, ...] = ()


Costs = tuple[TimedOp, ...]
"""The ops of a work: the first waits for what the work waits for; it is over with the last, on the same lane."""


Shape = tuple[tuple[str, tuple[int, ...], bool], ...]
"""Of each op of a work the lane, what it waits for, and whether it communicates."""


def shape_of(costs: Costs) -> Shape:
    """Return all that the places of a work's ops in a template depend on."""
    return tuple([(op.lane, op.after, op.communication is not None) for op in costs])


class EndOp(NamedTuple):
    """An op of a stage after its last action, and the name of the meeting if it communicates."""

    stage: int
    op: TimedOp
    name: Hashable = None


class EndOps:
    """Ops of stages after their last actions, stage by stage; ops of one name share their kind and their meeting.

    Each stage has them on a lane of their own, whose first op waits for the last action.
    """

    def __init__(self, ends: Sequence[EndOp]) -> None:
        names: dict[Hashable, int] = {}
        meeting = [-1 if end.name is None else names.setdefault(end.name, len(names)) for end in ends]
        self.meeting, self.meetings = int32s(meeting), len(names)
        self.kinds = [ends[meeting.index(number)].op.communication for number in range(len(names))]
        self.seconds = np.array([end.op.seconds for end in ends], dtype=np.float64)
        self.sensitivity = np.array([end.op.sensitivity for end in ends], dtype=np.float64)
        self.shape = tuple([(end.stage, number) for end, number in zip(ends, meeting, strict=True)])
        stages = int32s([end.stage for end in ends])
        self.stages, self.first, self.counts = np.unique(stages, return_index=True, return_counts=True)


class StepTemplate:
    """Ops of a step up to the last actions in program order, and what each waits for, without costs.

    The ops of all works are its units.
    """

    def __init__(self, items: Items, shapes: Sequence[Shape], stages: int) -> None:
        counts = int32s([*map(len, shapes)])
        size = counts[items.work]
        op_first = firsts(size)[:-1]
        self.unit = ranges(firsts(counts)[items.work], size)
        self._lanes(
            [(each.stage, lane) for each, shape in zip(items.works, shapes, strict=True) for lane, _, _ in shape],
            stages,
        )
        self._waits(items, shapes, op_first)
        self._columns: dict[Hashable, Columns] = {}
        communicates = np.array([communicates for shape in shapes for _, _, communicates in shape])
        self._kinds = int(communicates.sum())
        self._work = int32s(np.where(communicates, np.cumsum(communicates) - 1, -1))[self.unit]
        meets = np.flatnonzero(self._work >= 0)
        self._place = np.full_like(self._work, -1)
        self._place[meets] = np.arange(len(meets))
        self._meetings = len(meets)

    def _waits(self, items: Items, shapes: Sequence[Shape], op_first: Int32s) -> None:
        """List the ops of other lanes that each op waits for."""
        op_last = np.append(op_first[1:], int32s([len(self.unit)])) - 1
        waits = [(op_first[items.waiting], op_last[items.awaited])]
        for number, shape in enumerate(shapes):
            pairs = [
                (place, earlier)
                for place, (lane, after, _) in enumerate(shape)
                for earlier in after
                if shape[earlier][0] != lane
            ]
            begins = op_first[items.work == number] if pairs else op_first[:0]
            waits += [(begins + place, begins + earlier) for place, earlier in pairs]
        waiting, awaited = (np.concatenate(column) for column in zip(*waits, strict=True))
        self._wait_op = awaited[np.argsort(waiting, kind="stable")]
        self._wait_first = firsts(np.bincount(waiting, minlength=len(self.unit)))

    def _lanes(self, unit_lanes: Sequence[tuple[int, str]], stages: int) -> None:
        """Give every lane its ops in program order; main lanes come first."""
        lanes = {(stage, MAIN): stage for stage in range(stages)}
        numbers = [lanes.setdefault(each, len(lanes)) for each in unit_lanes]
        lane = np.array(numbers, dtype=np.int16)[self.unit]  # sorted by radix
        self._lane_op = int32s(np.argsort(lane, kind="stable"))
        self._lane_op_first = firsts(np.bincount(lane, minlength=len(lanes)))
        self._last = self._lane_op[self._lane_op_first[1 : stages + 1] - 1]
        self._lane_rank = int32s([stage for stage, _ in lanes])
        self.stages = stages

    def columns(self, ends: EndOps) -> Columns:
        """Return the columns of all ops, with those after the last actions."""
        if ends.shape not in self._columns:
            self._columns[ends.shape] = self._with_ends(ends)
        return self._columns[ends.shape]

    def _with_ends(self, ends: EndOps) -> Columns:
        """Return the ops with those after the last actions, without costs."""
        count, meetings, kinds = len(self.unit), self._meetings, self._kinds
        there = ends.meeting >= 0
        work = np.append(self._work, np.where(there, ends.meeting + kinds, ends.meeting))
        waits = np.zeros(len(ends.meeting), dtype=np.int32)
        waits[ends.first] = 1
        wait_op = np.append(self._wait_op, self._last[ends.stages])
        templates = Templates(
            op_first=int32s([0, len(work)]),
            seconds=np.empty(0),
            sensitivity=np.empty(0),
            slot=np.minimum(work, 0),
            work=work,
            place=np.append(self._place, np.where(there, ends.meeting + meetings, ends.meeting)),
            wait_first=np.append(self._wait_first, self._wait_first[-1] + firsts(waits)[1:]),
            wait_op=wait_op,
            wait_peer=np.full_like(wait_op, -1),
            lane_first=int32s([0, len(self._lane_rank) + len(ends.stages)]),
            lane_op_first=np.append(self._lane_op_first, count + firsts(ends.counts)[1:]),
            lane_op=np.append(self._lane_op, np.arange(count, len(work), dtype=np.int32)),
            lane_rank=np.append(self._lane_rank, ends.stages),
        )
        every = kinds + ends.meetings
        groups = Groups(int32s([0, meetings + ends.meetings]), int32s([0, every]), int32s(np.arange(every)))
        return Columns(templates, one_instance(templates, range(self.stages)), groups)


class Columns(NamedTuple):
    """Tables of all ops of a step, without their costs."""

    templates: Templates
    instances: Instances
    groups: Groups


class MainPart:
    """A step up to the last actions, with its costs; variants that differ only in the ops after these share it.

    ``capacity`` is in B/s per link; ``kept`` has the tables of kinds of communication.
    """

    def __init__(self, template: StepTemplate, ops: Sequence[TimedOp], capacity: Sequence[float], kept: Kept) -> None:
        self._template, self._kept = template, kept
        self._capacity = np.array(capacity, dtype=np.float64)
        self._kinds = [op.communication for op in ops if op.communication is not None]
        self._seconds = np.array([op.seconds for op in ops], dtype=np.float64)[template.unit]
        self._sensitivity = np.full(len(template.unit), -1.0)
        if any(each.interferes for each in self._kinds):
            self._sensitivity = np.array([op.sensitivity for op in ops])[template.unit]

    def step_seconds(self, ends: EndOps) -> float:
        """Return the step time."""
        after = self._stopped_engine if len(self._seconds) > _FEW else None
        return float(simulate_tables(self._tables(ends), str, keeps_times=False, after=after).lane_end.max())

    @cached_property
    def _stopped_engine(self) -> Engine:
        """The engine at the instant when the first stage has finished its actions."""
        return simulate_until(self._tables(EndOps([])), self._template.stages)

    def _tables(self, ends: EndOps) -> Tables:
        templates, instances, groups = self._template.columns(ends)
        templates = templates._replace(
            seconds=np.concatenate((self._seconds, ends.seconds)),
            sensitivity=np.concatenate((self._sensitivity, ends.sensitivity)),
        )
        every = [*self._kinds, *[each for each in ends.kinds if each is not None]]
        made: KindTables = self._kept.once(tuple(map(id, every)), lambda: _communication(every))
        return Tables(templates, instances, groups, *made.tables, self._capacity, {}, {})


class KindTables(NamedTuple):
    """Kinds of communication; ``every`` keeps the costs alive whose ids are the cache key."""

    tables: CommunicationTables
    every: Sequence[CommunicationCost]


def _communication(every: Sequence[CommunicationCost]) -> KindTables:
    """Return the tables of these kinds of communication."""
    kinds = [CommunicationKind(each.parties, each.traffics, each.stages, each.pressure, each.drag) for each in every]
    return KindTables(communication_tables(kinds), every)
