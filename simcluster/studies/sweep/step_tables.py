"""The actions and sends of a schedule's stages as columns, before any duration.

They do not depend on costs, so all variants of one schedule share them.  There are up to 150,000, of few kinds.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple, TypeAlias

import numpy as np

from simcluster.base.arrays import Int32s, Ints
from simcluster.base.kept import Kept
from simcluster.engine.run import simulate_tables
from simcluster.engine.tables import (
    CommunicationKind,
    Groups,
    Tables,
    Templates,
    communication_tables,
    firsts,
    int32s,
    one_instance,
)
from simcluster.engine.template_ops import TemplateOps
from simcluster.planning.ops import MAIN
from simcluster.schedules import Action, Schedule


class ActionWork(NamedTuple):
    """The work of an action: a letter F, B, I or W of a stage's chunk.

    ``arrives``: its input comes from another stage; ``casts``: it casts the weights.
    """

    kind: str
    stage: int
    chunk: int
    arrives: bool
    casts: bool = False


class Sent(NamedTuple):
    """The content of a send: an activation (of F) or a gradient, from a stage to another."""

    kind: str
    stage: int
    target: int

    def lane(self, *, overlap: bool) -> str:
        """Return the lane of its stage that it is on."""
        return f"send {self.kind}" if overlap else MAIN


class End(NamedTuple):
    """The work of a stage after its last action."""

    stage: int


Work: TypeAlias = ActionWork | Sent | End


class Items(NamedTuple):
    """Actions and sends, stage by stage in program order, then the ends of all stages.

    ``work`` has the number of each item in ``works``; each ``waiting`` item waits for the ``awaited`` one besides the
    item before it on its lane.
    """

    works: tuple[Work, ...]
    work: Ints
    waiting: Ints
    awaited: Ints


def schedule_items(schedule: Schedule, *, overlap: bool, casts: bool) -> Items:
    """Return the items of a schedule of whose chunks none is on two routes; an action's send directly follows it.

    A fused pair waits for what both of its actions need, and its sends follow the second one.  Sends are on the main
    lane of their stage, or on separate lanes (``overlap``).  ``casts``: the first F of each chunk casts its weights.
    """
    rows = _Rows(schedule, casts=casts)
    columns = [rows.row(stage) for stage in range(schedule.num_stages)]
    work, send, needs, makes = np.concatenate(columns, axis=1)
    starts = np.cumsum([0, *[row.shape[1] for row in columns]])
    halves = np.array(
        [starts[stage] + at for stage in range(schedule.num_stages) for at in schedule.fused_at(stage)], int
    )
    sends = send >= 0
    actions = np.arange(len(work)) + np.cumsum(sends) - sends
    begins, sent = actions.copy(), actions + 1
    actions[halves + 1] = sent[halves]  # both actions, then the sends of both
    begins[halves + 1] = begins[halves]
    sent[halves] += 1
    ends = actions.copy()
    ends[halves] = ends[halves + 1]
    items = np.empty(len(work) + int(sends.sum()), dtype=np.int64)
    items[actions], items[sent[sends]] = work, send[sends]
    source = np.empty(rows.outputs, dtype=np.int64)
    source[makes[sends]] = sent[sends]
    waiting, awaited = begins[needs > 0], source[needs[needs > 0]]
    if overlap:
        waiting, awaited = np.append(waiting, sent[sends]), np.append(awaited, ends[sends])
    works = (*rows.works, *map(End, range(schedule.num_stages)))
    return Items(works, np.append(items, np.arange(len(rows.works), len(works))), waiting, awaited)


class _Rows:
    """The actions of stages, one row for each; there are ``outputs`` that may cross stages, with 0 for none."""

    def __init__(self, schedule: Schedule, *, casts: bool) -> None:
        self.works: list[ActionWork | Sent] = []
        self._numbers: dict[ActionWork | Sent, int] = {}
        self._schedule, self._casts, self._slices = schedule, casts, len(schedule.routes[0])
        self.outputs = 2 * self._slices * schedule.num_microbatches + 1

    def _number(self, work: ActionWork | Sent) -> int:
        if work not in self._numbers:
            self._numbers[work] = len(self.works)
            self.works.append(work)
        return self._numbers[work]

    def row(self, stage: int) -> Ints:
        """Return the work of a stage's actions, their sends (-1: none), and the outputs that they need and make."""
        kinds, microbatches, chunks = zip(*self._schedule.rows[stage], strict=True)
        names = [*zip(kinds, chunks, strict=True)]
        known = {name: place for place, name in enumerate(dict.fromkeys(names))}
        which = np.array([*map(known.__getitem__, names)])
        first = np.unique(which, return_index=True)[1].tolist()
        table = []
        for (kind, chunk), place in zip(known, first, strict=True):
            work, sent, *outputs = self._role(stage, Action(kind, microbatches[place], chunk))
            table.append((self._number(work), -1 if sent is None else self._number(sent), *outputs))
        row: Ints = np.array(table).T[:, which]
        for (kind, chunk), place in zip(known, first, strict=True):
            if self._casts and kind == "F":
                work = self._role(stage, Action(kind, microbatches[place], chunk))[0]
                row[0, place] = self._number(work._replace(casts=True))
        row[2:] += np.where(row[2:] > 0, np.array(microbatches), 0)
        return row

    def _role(self, stage: int, action: Action) -> tuple[ActionWork, Sent | None, int, int]:
        """Return an action's work and send, equal for all of its kind on a chunk, and the outputs of microbatch 0."""
        schedule, count = self._schedule, self._schedule.num_microbatches
        here = action.microbatch, stage, action.chunk
        forward, place = action.kind == "F", schedule.virtual_stage(*here)
        ends = schedule.previous_hop(*here), schedule.next_hop(*here)
        source, target = (None, None) if action.kind == "W" else ends if forward else reversed(ends)
        arrives = source is not None and source[0] != stage
        sent = None if target is None or target[0] == stage else Sent("F" if forward else "B", stage, target[0])
        first = place if forward else self._slices + place
        needs = 1 + (first + (-1 if forward else 1)) * count if arrives else 0
        makes = 0 if sent is None else 1 + first * count
        return ActionWork(action.kind, stage, action.chunk, arrives), sent, needs, makes


def ranges(begins: Int32s, counts: Int32s) -> Int32s:
    """Return the numbers of several ranges, one after the other."""
    whole = np.repeat(begins - np.cumsum(counts, dtype=np.int32) + counts, counts)
    return whole + np.arange(len(whole), dtype=np.int32)


class TimedOp(NamedTuple):
    """One op and its cost: ``seconds`` at full speed, or a ``communication``.

    ``after`` lists earlier ops of the same work that it waits for, besides the one before it on its ``lane``.  Ops at
    the ends of stages meet those of the same ``meeting``; without a name, each op is a meeting.
    """

    seconds: float = 0.0
    sensitivity: float = -1.0
    communication: CommunicationKind | None = None
    lane: str = MAIN
    after: tuple[int, ...] = ()
    meeting: Hashable = None


Costs = tuple[TimedOp, ...]
"""The ops of a work: the first waits for what the work waits for; it is over with the last, on the same lane."""


Shape = tuple[tuple[str, tuple[int, ...], int], ...]
"""Of each op of a work the lane, what it waits for, and the number of its kind of communication (-1: none)."""


def shapes_of(costs: Sequence[Costs]) -> tuple[Shape, ...]:
    """Return all that the places of works' ops in a template depend on."""
    kinds: dict[Hashable, int] = {}

    def kind_of(op: TimedOp) -> int:
        if op.communication is None:
            return -1
        return kinds.setdefault(len(kinds) if op.meeting is None else op.meeting, len(kinds))

    return tuple([tuple([(op.lane, op.after, kind_of(op)) for op in ops]) for ops in costs])


class StepTemplate:
    """Ops of a step in program order, and what each waits for, without costs.

    The ops of all works are its units: ``unit`` has that of each op, ``first_of_kind`` that of each kind.
    """

    def __init__(self, items: Items, shapes: Sequence[Shape], stages: int) -> None:
        counts = int32s([*map(len, shapes)])
        size = counts[items.work]
        op_first = firsts(size)
        self.unit = ranges(firsts(counts)[items.work], size)
        units = [(each, *unit) for each, shape in zip(items.works, shapes, strict=True) for unit in shape]
        first: dict[int, int] = {}
        for number, (_, _, _, kind) in enumerate(units):
            first.setdefault(kind, number)
        self.first_of_kind = [number for kind, number in first.items() if kind >= 0]
        work = int32s([kind for _, _, _, kind in units])[self.unit]
        place = np.cumsum(work >= 0, dtype=np.int32)
        ends = len(place) - sum(isinstance(each, End) for each, _, _, _ in units)
        meetings, kinds = int(place[-1]) + 1, len(self.first_of_kind)
        place[ends:] = meetings + work[ends:]
        lanes = {(stage, MAIN): stage for stage in range(stages)}
        numbers = [lanes.setdefault((each.stage, lane), len(lanes)) for each, lane, _, _ in units]
        lane = np.array(numbers, dtype=np.int16)[self.unit]  # sorted by radix
        wait_first, wait_op = _waits(items, shapes, op_first)
        self.templates = Templates(
            op_first=int32s([0, len(work)]),
            seconds=np.zeros(len(work)),
            sensitivity=np.full(len(work), -1.0),
            slot=np.minimum(work, 0),
            work=work,
            place=place,
            wait_first=wait_first,
            wait_op=wait_op,
            wait_peer=np.full_like(wait_op, -1),
            lane_first=int32s([0, len(lanes)]),
            lane_op_first=firsts(np.bincount(lane, minlength=len(lanes))),
            lane_op=int32s(np.argsort(lane, kind="stable")),
            lane_rank=int32s([stage for stage, _ in lanes]),
        )
        self.instances = one_instance(self.templates, range(stages))._replace(own_seconds=int32s([0]))
        self.groups = Groups(int32s([0, meetings + kinds]), int32s([0, kinds]), int32s(range(kinds)))


@lru_cache(2)
def _ops_of(template: StepTemplate) -> TemplateOps:
    """Return the ops of a template that nothing slows down."""
    return TemplateOps(template.templates, template.instances)


def _waits(items: Items, shapes: Sequence[Shape], op_first: Int32s) -> tuple[Int32s, Int32s]:
    """Return the ops of other lanes that each op waits for, as ``Templates`` has them."""
    waits = [(op_first[items.waiting], op_first[items.awaited + 1] - 1)]
    for number, shape in enumerate(shapes):
        pairs = [
            (place, earlier)
            for place, (lane, after, _) in enumerate(shape)
            for earlier in after
            if shape[earlier][0] != lane
        ]
        begins = op_first[:-1][items.work == number] if pairs else op_first[:0]
        waits += [(begins + place, begins + earlier) for place, earlier in pairs]
    waiting, awaited = (np.concatenate(column) for column in zip(*waits, strict=True))
    return firsts(np.bincount(waiting, minlength=int(op_first[-1]))), awaited[np.argsort(waiting, kind="stable")]


def step_seconds(template: StepTemplate, costs: Sequence[Costs], capacity: Sequence[float], kept: Kept) -> float:
    """Return the time of a step whose works have these costs; ``kept`` has tables of communications."""
    ops = [*chain.from_iterable(costs)]
    kinds = [kind for number in template.first_of_kind if (kind := ops[number].communication)]
    templates, read = template.templates, None
    if any(kind.pressure or kind.drag for kind in kinds):
        templates = templates._replace(sensitivity=np.array([op.sensitivity for op in ops])[template.unit])
    else:
        read = _ops_of(template)
    communications, _ = kept.once(("tables", *map(id, kinds)), lambda: (communication_tables(kinds), kinds))
    instances = template.instances._replace(seconds=np.array([op.seconds for op in ops])[template.unit])
    on_links = np.array(capacity, dtype=np.float64)
    tables = Tables(templates, instances, template.groups, *communications, on_links, {}, {}, read)
    return float(simulate_tables(tables, str, keeps_times=False).lane_end.max())
