"""Ops of one pipeline stage with user-supplied times of passes and messages. No side effects."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction
from functools import partial
from typing import Literal, NamedTuple

from simcluster.planning.ops import MAIN, Dependency, Op, Segment, StageProgram, WorkItem
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.planning.stage_boundaries import BlockingSendOptions, Key, SendReceiveBuilder, action_hops, tensor_name
from simcluster.planning.user_supplied_times import ChunkCosts, Costs
from simcluster.planning.work_kinds import Compute, FixedCollective, StageSend
from simcluster.schedules import Action, Schedule
from simcluster.schedules.actions import PASS_NAMES, Kind


def make_pass_piece_segments(kind: Kind, seconds: float, costs: Costs, tp: int, pieces: int) -> list[Segment]:
    """Return one pass as segments of equal compute time; a tp collective follows each equal part of it, not in W."""
    name = PASS_NAMES[kind]
    quiet = kind == "W" or tp == 1 or not costs.tensor_parallel
    collectives = 0 if quiet else costs.collectives
    ends = {Fraction(number, collectives) for number in range(1, collectives + 1)}
    found: list[Segment] = []
    done, ops = Fraction(0), list[Op]()
    cuts = [Fraction(number, pieces) for number in range(1, pieces + 1)]
    for here in sorted(ends.union(cuts)):
        share, done = here - done, here
        ops.append(Op(Compute(seconds * share.numerator / share.denominator), "compute", name, name))
        if here in ends:
            ops.append(Op(FixedCollective("tp", costs.tensor_parallel), "tp", "all_reduce", name))
        if here == cuts[len(found)]:
            found.append(Segment(tuple(ops)))
            ops = []
    return found


SendMode = Literal["beside", "blocking", "rendezvous"]
"""Mode of sends: overlapped with compute, blocking the sender, or blocking sender and receiver (rendezvous)."""

_item: Callable[[tuple[object, ...]], WorkItem] = partial(tuple.__new__, WorkItem)
_need: Callable[[tuple[object, ...]], Dependency] = partial(tuple.__new__, Dependency)
"""Fast constructors of WorkItem and Dependency: 150 and 140 ns, not 240 and 200; deep pipelines make half a million."""

_ENDS = ("F", "B", "W", "half F", "half B", "half W", "send F", "send B")
"""Kinds of ends that items wait for: of actions by output, of first halves of pairs, and of sends.  Each has a
number for every step, slice of the model and microbatch: 523,264 ops are planned in 0.41 s, with tuples in 0.55 s."""

_REDUCTIONS = "dp"  # the lane of gradients that are reduced beside computation


class _ActionTemplate(NamedTuple):
    """Segments and keys of one type of action (pass and chunk) on a stage, reused for all microbatches on one route.

    ``end_key`` is the number of its end, of the first step and microbatch, ``half_end_key`` that as the first of a
    pair. It waits for the end ``source_key`` at the stage ``source_stage`` (-1 for nothing). ``send``, put on its lane
    by ``append_send``, takes what it made to another stage, and is over at ``send_key``.
    """

    segment: Segment
    end_key: int
    half_end_key: int
    source_stage: int
    source_key: int
    send: Segment | None
    send_key: int
    append_send: Callable[[WorkItem], None]


class FixedTimeSendReceiveBuilder(SendReceiveBuilder):
    """Builder of one stage's blocking sends and receives with user-supplied times."""

    def __init__(self, costs: ChunkCosts, schedule: Schedule, lanes: ProgramBuilder) -> None:
        super().__init__(BlockingSendOptions(schedule), lanes)
        self._costs, self._schedule = costs, schedule

    def awaited_sends(self, actions: Sequence[Action], step: int) -> tuple[Dependency, ...]:
        """Return dependencies on the sends of other stages that these actions wait for."""
        received = [action for action in actions if self._source_hop(action) is not None]
        return tuple(need for action in received for need in self.input_dependencies(action, step))

    def _send_work(self, target: int, key: Key) -> StageSend:
        made, _, microbatch, place = key
        stage, chunk = self._schedule.microbatch_route(microbatch)[place]
        return StageSend(target, 0.0, self._costs.chunk_costs(stage, chunk).send_seconds(made), rendezvous=True)


class FixedTimeStageBuilder:
    """Builder of one stage's ops from user-supplied times of passes, sends and reductions."""

    def __init__(
        self, costs: ChunkCosts, schedule: Schedule, plan: ParallelPlan, stage: int, way: SendMode, end: float | None
    ) -> None:
        self._costs, self._schedule, self._plan, self._stage = costs, schedule, plan, stage
        self._blocking, self._end = way == "blocking", end
        self._lanes = ProgramBuilder(stage, pipelined=plan.pp > 1)
        self._meetings = FixedTimeSendReceiveBuilder(costs, schedule, self._lanes) if way == "rendezvous" else None
        self._slices = max(map(len, schedule.routes))
        self._parts: dict[tuple[str, int, int], _ActionTemplate] = {}
        grads = {action.chunk: place for place, action in enumerate(schedule.rows[stage]) if action.kind in "BW"}
        self._reducing = {
            place: chunk for chunk, place in grads.items() if plan.dp > 1 and costs.chunk_grad_buckets(stage, chunk)[0]
        }
        self._reduced: tuple[Dependency, ...] = ()

    def build_program(self, steps: int) -> StageProgram:
        """Return the ops of the stage for all steps."""
        for step in range(steps):
            self._add_schedule_row(step)
            self._add_step_end(step)
        return self._lanes.build_program()

    def _add_schedule_row(self, step: int) -> None:
        """Add the stage's scheduled actions in order; fused pairs [F|B] wait as in ``stage_programs``."""
        row, firsts = self._schedule.rows[self._stage], frozenset(self._schedule.fused_positions(self._stage))
        begin = step * len(_ENDS) * self._slices * self._schedule.num_microbatches
        parts, route_of, meetings = self._parts, self._schedule.route_of, self._meetings
        put = partial(self._lanes.append_item, MAIN) if meetings else self._lanes.lane_appender(MAIN)
        meets = meetings.find_rendezvous(row, [*firsts]) if meetings else {}
        reducing = self._reducing
        halves: list[tuple[_ActionTemplate, Action]] = []
        for position, action in enumerate(row):
            kind, microbatch, chunk = action
            part = parts.get((kind, chunk, route_of[microbatch])) or self._make_action_template(action)
            at = begin + microbatch
            if meetings and not halves:
                if position in meets:
                    meetings.add_rendezvous(row[position : position + meets[position]], step)
                begins = row[position : position + 1 + (position in firsts)]
                self._lanes.delay_next_item(meetings.awaited_sends(begins, step))
            if position in firsts:
                twin = row[position + 1]
                half = parts.get((twin.kind, twin.chunk, route_of[twin.microbatch])) or self._make_action_template(twin)
                needs = _input_dependencies(part, at) + _input_dependencies(half, begin + twin.microbatch)
                put(WorkItem(part.segment, part.half_end_key + at, needs, step, chunk, microbatch))
                halves.append((part, action))
                continue
            if halves:
                first, done = halves.pop()
                also = (first.end_key + begin + done.microbatch,)
                put(WorkItem(part.segment, part.end_key + at, (), step, chunk, microbatch, also))
                self._add_send(first, step, begin, done)
                for place in (position - 1, position):
                    if place in reducing:
                        self._add_grad_reductions(step, reducing[place], [part.end_key + at])
            elif position in reducing:
                self._add_grad_reductions(step, chunk, self._add_pass_pieces(part, action, step, at))
            else:
                needs = _input_dependencies(part, at)
                put(_item((part.segment, part.end_key + at, needs, step, chunk, microbatch, ())))
            if part.send or meetings:
                self._add_send(part, step, begin, action)
        if meetings:
            meetings.add_rendezvous((), step)

    def _make_action_template(self, action: Action) -> _ActionTemplate:
        schedule, stage, made = self._schedule, self._stage, "B" if action.kind == "I" else action.kind
        here = schedule.virtual_stage(action.microbatch, stage, action.chunk)
        source, _ = action_hops(schedule, stage, action)
        target = None if self._meetings else _receiving_stage(schedule, stage, action)
        lane = MAIN if self._blocking else f"send {made}"
        send = None
        if target is not None:
            work = StageSend(target, 0.0, self._costs.chunk_costs(stage, action.chunk).send_seconds(made))
            send = self._lanes.op_segment(Op(work, "pp", "send", tensor_name(made), lane=lane))
        whence = wanted = -1
        if source is not None and not (self._meetings and source[0] != stage):
            whence, there = source[0], here + (-1 if made == "F" else 1)
            wanted = self._end_key(made if whence == stage else f"send {made}", there)
        part = _ActionTemplate(
            self._pass_segment(action), self._end_key(made, here), self._end_key(f"half {made}", here), whence,
            wanted, send,
            self._end_key(f"send {made}", here) if send else -1, self._lanes.lane_appender(lane if send else MAIN),
        )  # fmt: skip
        self._parts[action.kind, action.chunk, schedule.route_of[action.microbatch]] = part
        return part

    def _end_key(self, what: str, place: int) -> int:
        return (_ENDS.index(what) * self._slices + place) * self._schedule.num_microbatches

    def _pass_seconds(self, action: Action) -> float:
        seconds = self._costs.chunk_pass_seconds(action.kind, self._stage, action.chunk)
        sends = _receiving_stage(self._schedule, self._stage, action) is not None
        return seconds + self._costs.chunk_costs(self._stage, action.chunk).send_launch if sends else seconds

    def _pass_segment(self, action: Action) -> Segment:
        kind, chunk = action.kind, action.chunk
        seconds, costs = self._pass_seconds(action), self._costs.chunk_costs(self._stage, chunk)
        pieces = partial(make_pass_piece_segments, kind, seconds, costs, self._plan.tp, 1)
        return self._lanes.cached_segment((kind, chunk, seconds), lambda: pieces()[0])

    def _add_pass_pieces(self, part: _ActionTemplate, action: Action, step: int, at: int) -> list[Hashable]:
        kind, microbatch, chunk = action
        count, _ = self._costs.chunk_grad_buckets(self._stage, chunk)
        seconds, costs = self._pass_seconds(action), self._costs.chunk_costs(self._stage, chunk)
        needs = _input_dependencies(part, at)
        ends: list[Hashable] = []
        for number, segment in enumerate(make_pass_piece_segments(kind, seconds, costs, self._plan.tp, count), 1):
            ends.append(part.end_key + at if number == count else ("piece", step, chunk, number))
            item = WorkItem(segment, ends[-1], () if number > 1 else needs, step, chunk, microbatch)
            self._lanes.append_item(MAIN, item)
        return ends

    def _add_grad_reductions(self, step: int, chunk: int, ends: list[Hashable]) -> None:
        """Add a chunk's gradient reductions: each bucket waits for the part of the backward that completes it."""
        count, each = self._costs.chunk_grad_buckets(self._stage, chunk)
        op = Op(FixedCollective("dp", each), "dp", "all_reduce", "gradients", lane=_REDUCTIONS)
        for number in range(count):
            made = ends[min(number, len(ends) - 1)]
            key = ("reduced", step, chunk, number)
            self._lanes.append_op(op, key, (Dependency(self._stage, made),), step, chunk)
            self._reduced = (Dependency(self._stage, key),)

    def _add_send(self, part: _ActionTemplate, step: int, begin: int, done: Action) -> None:
        if self._meetings:
            self._meetings.add_output_send(done, step)
        elif part.send is not None:
            _, microbatch, chunk = done
            at = begin + microbatch
            needs = (_need((self._stage, part.end_key + at)),)
            part.append_send(_item((part.send, part.send_key + at, needs, step, chunk, microbatch, ())))

    def _add_step_end(self, step: int) -> None:
        grad_reduce, optimizer = self._costs.seconds_after_pipeline(self._stage)
        self._lanes.delay_next_item(self._reduced)
        if self._plan.dp > 1 and grad_reduce:
            op = Op(FixedCollective("dp", grad_reduce), "dp", "all_reduce", "gradients")
            self._lanes.append_op(op, ("grad_reduce", step), (), step)
        if self._end is not None:
            stream = "pp" if self._plan.pp > 1 else "tp"
            op = Op(FixedCollective("model", self._end), stream, "all_reduce", "gradient_norm")
            self._lanes.append_op(op, ("sync", step), (), step)
        if optimizer or self._reduced:  # where the next step's forward would wait for gradients, too
            op = Op(Compute(optimizer), "compute", "optimizer", "optimizer")
            self._lanes.append_op(op, ("optimizer", step), (), step)


def _input_dependencies(part: _ActionTemplate, at: int) -> tuple[Dependency, ...]:
    return (_need((part.source_stage, part.source_key + at)),) if part.source_stage >= 0 else ()


def _receiving_stage(schedule: Schedule, stage: int, action: Action) -> int | None:
    _, target = action_hops(schedule, stage, action)
    return None if target is None or target[0] == stage else target[0]
