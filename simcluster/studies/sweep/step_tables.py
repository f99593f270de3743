"""Tables of a quick step: a schedule's actions and sends in columns, and the ops that the engine runs.

They do not depend on costs, so all variants of one schedule share them. There are up to 150,000, of few kinds.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple, TypeAlias

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.base.lru_cache import LruCache
from simcluster.engine.events import TemplateOps
from simcluster.engine.run import simulate_tables
from simcluster.engine.tables import (
    CommunicationKind,
    EngineTables,
    GroupColumns,
    csr_offsets,
    make_single_instance,
    make_single_template,
    tabulate_communication,
    to_int32,
)
from simcluster.planning.ops import MAIN
from simcluster.schedules import Action, Schedule


class ActionWork(NamedTuple):
    """Work of one pass of a schedule: kind (F, B, I or W), stage and chunk.

    ``arrives``: its input comes from another stage; ``casts``: it casts the weights.
    """

    kind: str
    stage: int
    chunk: int
    arrives: bool
    casts: bool = False


class SendWork(NamedTuple):
    """A send between two stages, of an activation (kind F) or of an activation's gradient (kind B)."""

    kind: str
    stage: int
    target: int

    def lane_name(self, *, overlap: bool) -> str:
        """Return the name of the sending stage's lane (stream) on which the send runs."""
        return f"send {self.kind}" if overlap else MAIN


Work: TypeAlias = ActionWork | SendWork


class ScheduleColumns(NamedTuple):
    """Columns with an entry for each action and send of a schedule, stage by stage, then for each stage's end ops.

    ``distinct_works`` are of actions, then of sends; ``work_index`` has each item's number among them and stages' ends;
    each ``waiting_item`` item waits for the ``awaited_item`` one and the item before it on its lane.
    """

    distinct_works: tuple[Work, ...]
    work_index: Ints
    waiting_item: Ints
    awaited_item: Ints


def make_schedule_columns(schedule: Schedule, *, overlap: bool, casts: bool) -> ScheduleColumns:
    """Return a schedule's actions and sends as columns; each send directly follows its action.

    A fused pair waits for the inputs of both of its actions, and its sends follow the second one. Sends are on the main
    lane of their stage, or on separate lanes (``overlap``). ``casts``: the first F of each chunk casts its weights.
    """
    numbers: dict[Work, int] = {}
    work, send, needs, makes = _make_action_columns(schedule, numbers, casts=casts)
    starts = csr_offsets([*map(len, schedule.rows)]).tolist()
    halves = np.array([base + at for row, base in enumerate(starts[:-1]) for at in schedule.fused_positions(row)], int)
    sends = send >= 0
    actions = np.arange(len(work)) + np.cumsum(sends) - sends
    begins, sent = actions.copy(), actions + 1
    actions[halves + 1] = sent[halves]  # both actions, then the sends of both
    begins[halves + 1] = begins[halves]
    sent[halves] += 1
    over = actions.copy()
    over[halves] = over[halves + 1]
    items = np.empty(len(work) + int(sends.sum()), dtype=np.int64)
    items[actions], items[sent[sends]] = work, send[sends]
    source = np.empty(int(max(needs.max(), makes.max())) + 1, dtype=np.int64)
    source[makes[sends]] = sent[sends]
    waiting, awaited = begins[needs > 0], source[needs[needs > 0]]
    if overlap:
        waiting, awaited = np.append(waiting, sent[sends]), np.append(awaited, over[sends])
    works = sorted(numbers, key=lambda each: isinstance(each, SendWork))
    place = np.argsort([numbers[each] for each in works])
    ends = np.arange(schedule.num_stages) + len(works)
    return ScheduleColumns(tuple(works), np.append(place[items], ends), waiting, awaited)


def _make_action_columns(schedule: Schedule, numbers: dict[Work, int], *, casts: bool) -> Ints:
    """Return four columns over all actions: index of the work, of the send, of the input needed and of the output.

    The number of a missing send is -1; outputs count from 1, and 0 is none.
    """
    actions = [*chain.from_iterable(schedule.rows)]
    kinds, microbatches, chunks = zip(*actions, strict=True)
    stages = np.repeat(np.arange(schedule.num_stages), [*map(len, schedule.rows)])
    letters = np.frombuffer("".join(kinds).encode(), dtype=np.uint8)
    sort = (stages * schedule.num_chunks + np.array(chunks)) * 128 + letters
    first = np.full(int(sort.max()) + 1, -1)  # of each kind on each chunk
    first[sort[::-1]] = np.arange(len(sort))[::-1]
    rows, cast = np.zeros((len(first), 4), dtype=np.int64), {}

    def number_of_work(work: Work) -> int:
        return numbers.setdefault(work, len(numbers))

    for place in np.flatnonzero(first >= 0).tolist():
        at = int(first[place])
        work, sent, *outputs = _find_send_and_outputs(schedule, int(stages[at]), actions[at])
        rows[place] = number_of_work(work), -1 if sent is None else number_of_work(sent), *outputs
        if casts and work.kind == "F":
            cast[at] = number_of_work(work._replace(casts=True))
    columns: Ints = rows[sort].T
    columns[0, [*cast]] = [*cast.values()]
    columns[2:] += np.where(columns[2:] > 0, microbatches, 0)
    return columns


def _find_send_and_outputs(
    schedule: Schedule, stage: int, action: Action
) -> tuple[ActionWork, SendWork | None, int, int]:
    """Return an action's work and send, the number of the output that it needs, and the number of its output."""
    here, forward = (action.microbatch, stage, action.chunk), action.kind == "F"
    ends = schedule.previous_hop(*here), schedule.next_hop(*here)
    source, target = (None, None) if action.kind == "W" else ends if forward else reversed(ends)
    arrives = source is not None and source[0] != stage
    sent = None if target is None or target[0] == stage else SendWork("F" if forward else "B", stage, target[0])
    count, slices = schedule.num_microbatches, len(schedule.routes[0])
    own = schedule.virtual_stage(*here) + (0 if forward else slices)
    needs = 1 + (own + (-1 if forward else 1)) * count if arrives else 0
    return ActionWork(action.kind, stage, action.chunk, arrives), sent, needs, 0 if sent is None else 1 + own * count


class TimedOp(NamedTuple):
    """An op of a quick step with its cost: the ``seconds`` of compute, or the ``communication``.

    ``after`` lists earlier ops of the same work that it waits for, as for the op before it on its ``lane``. Ops at
    the ends of stages meet those of the same ``meeting_key``; without a name, each op is a meeting.
    """

    seconds: float = 0.0
    sensitivity: float = -1.0
    communication: CommunicationKind | None = None
    lane: str = MAIN
    after: tuple[int, ...] = ()
    meeting_key: Hashable = None


Costs = tuple[TimedOp, ...]
"""The ops of one work: its first op waits for the work's input, and its last op, on the same lane, ends it."""
Shape = tuple[tuple[str, tuple[int, ...], int], ...]
"""For each op of a work: its lane, the ops it waits for, and the number of its communication (-1: none)."""


def find_work_shapes(costs: Sequence[Costs]) -> tuple[tuple[Shape, ...], list[CommunicationKind]]:
    """Return, for each work, the lanes, waits and communication numbers of its ops; also return all communications."""
    numbers, kinds = dict[Hashable, int](), list[CommunicationKind]()

    def communication_number(op: TimedOp) -> int:
        if op.communication is None:
            return -1
        number = numbers.setdefault(len(kinds) if op.meeting_key is None else op.meeting_key, len(kinds))
        if number == len(kinds):
            kinds.append(op.communication)
        return number

    return tuple([tuple([(op.lane, op.after, communication_number(op)) for op in ops]) for ops in costs]), kinds


class StepTemplate:
    """Ops of a step in program order with their dependencies; durations are added for each simulation.

    The ops of all works are its units: ``unit`` is the index of each op's unit.
    """

    def __init__(self, items: ScheduleColumns, shapes: Sequence[Shape], stages: int) -> None:
        counts = to_int32([*map(len, shapes)])
        size = counts[items.work_index]
        op_first = csr_offsets(size)
        begins = op_first[:-1]
        shift = csr_offsets(counts)[items.work_index] - begins
        self.unit = np.repeat(shift, size) + np.arange(op_first[-1], dtype=np.int32)
        stage_of = [*(each.stage for each in items.distinct_works), *range(stages)]
        units = [(stage, *unit) for stage, shape in zip(stage_of, shapes, strict=False) for unit in shape]
        kinds = to_int32([kind for *_, kind in units])
        work = kinds[self.unit]
        place = np.cumsum(work >= 0, dtype=np.int32)
        ends = len(place) - sum(map(len, shapes[len(items.distinct_works) :]))
        meetings, many = int(place[-1]) + 1, int(kinds.max()) + 1
        place[ends:] = meetings + work[ends:]
        lanes = {(stage, MAIN): stage for stage in range(stages)}
        numbers = [lanes.setdefault((stage, lane), len(lanes)) for stage, lane, *_ in units]
        lane = np.array(numbers, dtype=np.int16)[self.unit]  # sorted by radix
        waits = [(begins[items.waiting_item], op_first[items.awaited_item + 1] - 1)]
        for number, shape in enumerate(shapes):
            lanes_of = [own for own, *_ in shape]
            pairs = [
                (at, other) for at, (own, after, _) in enumerate(shape) for other in after if lanes_of[other] != own
            ]
            here = begins[items.work_index == number] if pairs else begins
            waits += [(here + at, here + other) for at, other in pairs]
        waiting, awaited = (np.concatenate(column) for column in zip(*waits, strict=True))
        self.templates = make_single_template(
            lane, [stage for stage, _ in lanes], waiting, awaited, work=work, place=place, slot=np.minimum(work, 0),
            seconds=np.zeros(len(work)), sensitivity=np.full(len(work), -1.0),
        )  # fmt: skip
        self.instances = make_single_instance(self.templates, range(stages))._replace(own_seconds=to_int32([0]))
        self.groups = GroupColumns(to_int32([0, meetings + many]), to_int32([0, many]), to_int32(range(many)))

    @cached_property
    def template_ops(self) -> object:
        """The template's ops as an object of the compiled engine, for steps without interference."""
        return TemplateOps(self.templates, self.instances)


def simulate_template(
    template: StepTemplate, costs: Sequence[Costs], kinds: Sequence[CommunicationKind], capacity: Sequence[float],
    cache: LruCache,
) -> float:  # fmt: skip
    """Simulate a step with these op costs; return its time (s)."""
    ops = [*chain.from_iterable(costs)]
    templates, read = template.templates, None
    if any(kind.pressure or kind.drag for kind in kinds):
        templates = templates._replace(sensitivity=np.array([op.sensitivity for op in ops])[template.unit])
    else:
        read = template.template_ops
    communications, _ = cache.get_or_make(("tables", *map(id, kinds)), lambda: (tabulate_communication(kinds), kinds))
    instances = template.instances._replace(seconds=np.array([op.seconds for op in ops])[template.unit])
    on_links = np.array(capacity, dtype=np.float64)
    tables = EngineTables(templates, instances, template.groups, *communications, on_links, {}, {}, read)
    return float(simulate_tables(tables, str, keeps_times=False).lane_end.max())
