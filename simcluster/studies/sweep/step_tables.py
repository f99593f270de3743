"""Tables for the compiled engine of a step whose ranks are one per stage.

The program is explicit: one template, and one instance with a rank for each stage.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Int32s
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
from simcluster.studies.sweep.order import End, Items, ranges


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
