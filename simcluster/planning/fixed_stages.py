"""Ops of one pipeline stage whose passes and messages have given times. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Literal, NamedTuple

from simcluster.planning.boundaries import BoundaryBuilder, Key
from simcluster.planning.fixed_costs import Costs, StageCosts
from simcluster.planning.ops import MAIN, Item, Need, Op, Segment, StageProgram
from simcluster.planning.parallel import Plan
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.works import Compute, FixedCollective, Transfer
from simcluster.schedules import Action, Hop, Schedule
from simcluster.schedules.actions import PASS_NAMES, Kind


def make_send(kind: str, to_stage: int, seconds: float, lane: str) -> Segment:
    """Return the segment that sends a tensor to another stage in ``seconds``."""
    name = "activation" if kind == "F" else "gradient"
    return Segment((Op(Transfer(to_stage, 0.0, seconds), "pp", "send", name, lane=lane),))


def make_pass(kind: Kind, seconds: float, costs: Costs, tp: int) -> Segment:
    """Return one pass of a chunk: compute in equal parts, each followed by a tp collective (none in W)."""
    return make_pass_pieces(kind, seconds, costs, tp, 1)[0]


def make_pass_pieces(kind: Kind, seconds: float, costs: Costs, tp: int, pieces: int) -> list[Segment]:
    """Return one pass in pieces of equal compute time; a tp collective belongs to the piece before it."""
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


def make_reduction(seconds: float, lane: str) -> Segment:
    """Return the segment of the all-reduce of one gradient bucket over dp."""
    return Segment((Op(FixedCollective("dp", seconds), "dp", "all_reduce", "gradients", lane=lane),))


SendMode = Literal["beside", "blocking", "rendezvous"]
"""How messages are sent: overlapped with compute, blocking the sender, or where both ends meet."""

_item: Callable[[tuple[object, ...]], Item] = partial(tuple.__new__, Item)
_need: Callable[[tuple[object, ...]], Need] = partial(tuple.__new__, Need)
"""An Item and a Need of all their fields: 150 and 140 ns instead of 240 and 200, half a million in deep pipelines."""

_ENDS = ("F", "B", "W", "half F", "half B", "half W", "send F", "send B")
"""Whose ends others wait for: actions by what they make, the first halves of pairs, and sends.  Each has a
number for every step, slice of the model and microbatch: 523,264 ops are planned in 0.41 s, with tuples in 0.55 s."""

_REDUCTIONS = "dp"  # the lane of gradients that are reduced beside computation


class _ActionTemplate(NamedTuple):
    """Data shared by a stage's actions of equal kind and chunk, for microbatches on one route.

    ``key`` is the number of its end, of the first step and microbatch, ``half`` that as the first of a pair. It waits
    for the end ``source`` at the stage ``whence`` (-1 for nothing). ``send``, put on its lane by ``leave``, takes what
    it made to another stage, and is over at ``sent``.
    """

    segment: Segment
    key: int
    half: int
    whence: int
    source: int
    send: Segment | None
    sent: int
    leave: Callable[[Item], None]


@dataclass(frozen=True, slots=True)
class BlockingSends:
    """Options of a job with blocking sends, in which sender and receiver wait for each other."""

    schedule: Schedule
    rendezvous: bool = True
    overlap_sends: bool = False
    gather_boundary: bool = False
    send_bytes: float = 0.0


class FixedBoundaries(BoundaryBuilder):
    """Builder of one stage's blocking sends and receives, which take given times."""

    def __init__(self, costs: StageCosts, schedule: Schedule, lanes: ProgramBuilder) -> None:
        super().__init__(BlockingSends(schedule), lanes)
        self._costs, self._schedule = costs, schedule

    def arrivals(self, actions: Sequence[Action], step: int) -> tuple[Need, ...]:
        """Return what these actions wait for from other stages."""
        return tuple(
            need for action in actions if self._comes_from(action) is not None for need in self.needs(action, step)
        )

    def _transfer_to_stage(self, target: int, key: Key) -> Transfer:
        made, _, microbatch, place = key
        stage, chunk = self._schedule.route(microbatch)[place]
        return Transfer(target, 0.0, self._costs.costs_of(stage, chunk).send_seconds(made), rendezvous=True)


class FixedStage:
    """Builder of one stage's ops with given times; ``end`` is the time of the final all-reduce over stages."""

    def __init__(
        self, costs: StageCosts, schedule: Schedule, plan: Plan, stage: int, way: SendMode, end: float | None
    ) -> None:
        self._costs, self._schedule, self._plan, self._stage = costs, schedule, plan, stage
        self._blocking, self._end = way == "blocking", end
        self._lanes = ProgramBuilder(stage, pipelined=plan.pp > 1)
        self._meetings = FixedBoundaries(costs, schedule, self._lanes) if way == "rendezvous" else None
        self._slices = max(map(len, schedule.routes))
        self._parts: dict[tuple[str, int, int], _ActionTemplate] = {}
        gradients = {action.chunk: place for place, action in enumerate(schedule.rows[stage]) if action.kind in "BW"}
        self._reducing = {
            place: chunk for chunk, place in gradients.items() if plan.dp > 1 and costs.chunk_buckets(stage, chunk)[0]
        }
        self._reduced: tuple[Need, ...] = ()

    def program(self, steps: int) -> StageProgram:
        """Return the ops of the stage for all steps."""
        for step in range(steps):
            self._add_row(step)
            self._add_step_end(step)
        return self._lanes.program()

    def _add_row(self, step: int) -> None:
        """Add the actions of the stage's row of the schedule, in order.

        In a fused pair [F|B] the first half waits for what both need; the outputs of both exist at the end of the
        second.
        """
        row, firsts = self._schedule.rows[self._stage], frozenset(self._schedule.fused_at(self._stage))
        begin = step * len(_ENDS) * self._slices * self._schedule.num_microbatches
        parts, route_of, meetings = self._parts, self._schedule.route_of, self._meetings
        put = partial(self._lanes.append_item, MAIN) if meetings else self._lanes.appender(MAIN)
        meets = meetings.rendezvous(row, [*firsts]) if meetings else {}
        reducing = self._reducing
        halves: list[tuple[_ActionTemplate, Action]] = []
        for position, action in enumerate(row):
            kind, microbatch, chunk = action
            part = parts.get((kind, chunk, route_of[microbatch])) or self._make_template(action)
            at = begin + microbatch
            if meetings and not halves:
                if position in meets:
                    meetings.add_rendezvous(row[position : position + meets[position]], step)
                self._lanes.delay_next_item(
                    meetings.arrivals(row[position : position + 1 + (position in firsts)], step)
                )
            if position in firsts:
                other = row[position + 1]
                others = parts.get((other.kind, other.chunk, route_of[other.microbatch])) or self._make_template(other)
                needs = _needs_of_part(part, at) + _needs_of_part(others, begin + other.microbatch)
                put(Item(part.segment, part.half + at, needs, step, chunk, microbatch))
                halves.append((part, action))
                continue
            if halves:
                first, done = halves.pop()
                also = (first.key + begin + done.microbatch,)
                put(Item(part.segment, part.key + at, (), step, chunk, microbatch, also))
                self._add_send(first, step, begin, done)
                for place in (position - 1, position):
                    if place in reducing:
                        self._add_reductions(step, reducing[place], [part.key + at])
            elif position in reducing:
                self._add_reductions(step, chunk, self._add_pieces(part, action, step, at))
            else:
                put(_item((part.segment, part.key + at, _needs_of_part(part, at), step, chunk, microbatch, ())))
            if part.send or meetings:
                self._add_send(part, step, begin, action)
        if meetings:
            meetings.add_rendezvous((), step)

    def _make_template(self, action: Action) -> _ActionTemplate:
        schedule, stage, made = self._schedule, self._stage, "B" if action.kind == "I" else action.kind
        here = schedule.virtual_stage(action.microbatch, stage, action.chunk)
        source, _ = _adjacent_hops(schedule, stage, action)
        target = None if self._meetings else _receiving_stage(schedule, stage, action)
        lane = MAIN if self._blocking else f"send {made}"
        send = None
        if target is not None:
            seconds = self._costs.costs_of(stage, action.chunk).send_seconds(made)
            send = self._lanes.segment((lane, made, target, seconds), lambda: make_send(made, target, seconds, lane))
        whence = wanted = -1
        if source is not None and action.kind != "W" and not (self._meetings and source[0] != stage):
            # W: what it makes itself is made there first
            whence, there = source[0], here + (-1 if made == "F" else 1)
            wanted = self._end_number(made if whence == stage else f"send {made}", there)
        part = _ActionTemplate(
            self._pass_segment(action), self._end_number(made, here), self._end_number(f"half {made}", here), whence,
            wanted, send,
            self._end_number(f"send {made}", here) if send else -1, self._lanes.appender(lane if send else MAIN),
        )  # fmt: skip
        self._parts[action.kind, action.chunk, schedule.route_of[action.microbatch]] = part
        return part

    def _end_number(self, what: str, place: int) -> int:
        return (_ENDS.index(what) * self._slices + place) * self._schedule.num_microbatches

    def _pass_seconds(self, action: Action) -> float:
        seconds = self._costs.seconds(action.kind, self._stage, action.chunk)
        sends = _receiving_stage(self._schedule, self._stage, action) is not None
        return seconds + self._costs.costs_of(self._stage, action.chunk).send_launch if sends else seconds

    def _pass_segment(self, action: Action) -> Segment:
        kind, chunk = action.kind, action.chunk
        seconds = self._pass_seconds(action)
        costs = self._costs.costs_of(self._stage, chunk)
        return self._lanes.segment((kind, chunk, seconds), lambda: make_pass(kind, seconds, costs, self._plan.tp))

    def _add_pieces(self, part: _ActionTemplate, action: Action, step: int, at: int) -> list[Hashable]:
        kind, microbatch, chunk = action
        count, _ = self._costs.chunk_buckets(self._stage, chunk)
        seconds = self._pass_seconds(action)
        costs = self._costs.costs_of(self._stage, chunk)
        put, ends = partial(self._lanes.append_item, MAIN), list[Hashable]()
        for number, segment in enumerate(make_pass_pieces(kind, seconds, costs, self._plan.tp, count), 1):
            ends.append(part.key + at if number == count else ("piece", step, chunk, number))
            put(Item(segment, ends[-1], () if number > 1 else _needs_of_part(part, at), step, chunk, microbatch))
        return ends

    def _add_reductions(self, step: int, chunk: int, ends: list[Hashable]) -> None:
        """Add the reductions of a chunk's gradient buckets, each after the piece that completes it."""
        count, seconds = self._costs.chunk_buckets(self._stage, chunk)
        segment = self._lanes.segment(("reduce", seconds), lambda: make_reduction(seconds, _REDUCTIONS))
        for number in range(count):
            made = ends[min(number, len(ends) - 1)]
            key = ("reduced", step, chunk, number)
            self._lanes.append_item(_REDUCTIONS, Item(segment, key, (Need(self._stage, made),), step, chunk))
            self._reduced = (Need(self._stage, key),)

    def _add_send(self, part: _ActionTemplate, step: int, begin: int, done: Action) -> None:
        if self._meetings:
            self._meetings.send(done, step)
        elif part.send is not None:
            _, microbatch, chunk = done
            at = begin + microbatch
            needs = (_need((self._stage, part.key + at)),)
            part.leave(_item((part.send, part.sent + at, needs, step, chunk, microbatch, ())))

    def _add_step_end(self, step: int) -> None:
        grad_reduce, optimizer = self._costs.seconds_after_pipeline(self._stage)
        self._lanes.delay_next_item(self._reduced)
        if self._plan.dp > 1 and grad_reduce:
            self._add_blocking(
                "grad_reduce", Op(FixedCollective("dp", grad_reduce), "dp", "all_reduce", "gradients"), step
            )
        if self._end is not None:
            stream = "pp" if self._plan.pp > 1 else "tp"
            self._add_blocking(
                "sync", Op(FixedCollective("model", self._end), stream, "all_reduce", "gradient_norm"), step
            )
        if optimizer or self._reduced:  # where the next step's forward would wait for gradients, too
            self._add_blocking("optimizer", Op(Compute(optimizer), "compute", "optimizer", "optimizer"), step)

    def _add_blocking(self, key: str, op: Op, step: int) -> None:
        self._lanes.append_item(MAIN, Item(self._lanes.segment(key, lambda: Segment((op,))), (key, step), (), step))


def _needs_of_part(part: _ActionTemplate, at: int) -> tuple[Need, ...]:
    return (_need((part.whence, part.source + at)),) if part.whence >= 0 else ()


def _receiving_stage(schedule: Schedule, stage: int, action: Action) -> int | None:
    _, target = _adjacent_hops(schedule, stage, action)
    return None if action.kind == "W" or target is None or target[0] == stage else target[0]


def _adjacent_hops(schedule: Schedule, stage: int, action: Action) -> tuple[Hop | None, Hop | None]:
    before = schedule.previous_hop(action.microbatch, stage, action.chunk)
    after = schedule.next_hop(action.microbatch, stage, action.chunk)
    return (before, after) if action.kind == "F" else (after, before)
