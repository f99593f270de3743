"""A step from given times instead of a model and a device: textbook examples, and a profile that somebody measured.

The same stage programs, folding, engine and metrics as for a scenario; only durations are given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from simcluster.collectives.description import Floats, Ints
from simcluster.collector import collector_off
from simcluster.errors import InputError
from simcluster.lowering.lower import Choices, lower
from simcluster.lowering.program import Engine
from simcluster.planning.fixed_costs import Costs, StageCosts, planning_times, require_seconds
from simcluster.planning.lanes import Lanes
from simcluster.planning.ops import MAIN, Compute, Item, Need, Op, Segment, StageProgram, Timed, Transfer
from simcluster.planning.parallel import Plan
from simcluster.result import Run
from simcluster.schedules import Action, Hop, Schedule, ScheduleFunction, ScheduleMaker, make_schedule
from simcluster.simulating.players import play_by
from simcluster.traffic.methods import Methods
from simcluster.traffic.traffic import Spread

__all__ = ["Costs", "OptimizerSync", "seconds_between_steps", "simulate_costs"]

OptimizerSync = Literal["all_reduce", "post_validation"]
"""How the stages agree on the gradient norm and on overflow: before the optimizer, all together, or by a check that
goes along with the next step, so that no stage waits (arXiv:2401.10241 section 4)."""


@collector_off()
def simulate_costs(
    costs: Costs | Sequence[Costs],
    *,
    stages: int,
    microbatches: int,
    schedule: str | Schedule | ScheduleFunction | ScheduleMaker = "1f1b",
    chunks: int = 1,
    tp: int = 1,
    dp: int = 1,
    steps: int = 1,
    blocking_sends: bool = False,
    optimizer_sync: OptimizerSync = "post_validation",
    sync: float = 0.0,
    slowness: Mapping[int, float] | None = None,
    folded: bool = True,
    engine: Engine = "auto",
) -> Run:
    """Play steps of a pipeline with these times on tp x dp x stages ranks.

    ``costs`` is one for a whole stage, all alike, or one for each slice of the model (virtual stage) in forward order.
    ``schedule`` is a name, one with parameters (``schedules.specs``), a function or a ready Schedule; chunks are those
    that it has.  Messages go beside computation or, ``blocking_sends``, hold up the sender as in Megatron-LM's default.
    With ``optimizer_sync`` all_reduce every stage waits for all others before its optimizer, and ``sync`` seconds more.
    ``slowness[rank]`` multiplies that rank's compute times.  Given times are always one longest path (``engine`` path,
    auto); ``events`` gives the same to the bit.  Raises InputError as the schedule does, for a size below
    1, costs that are not one a slice, and for the slowness of a rank that is not there.
    """
    plan = Plan(tp=tp, dp=dp, pp=stages)
    _require(steps, optimizer_sync, sync)
    times, latency = planning_times(costs, stages)
    order = make_schedule(schedule, stages, microbatches, chunks, costs=times, latency=latency)
    given = StageCosts(costs, order)
    end = sync if optimizer_sync == "all_reduce" and stages * tp > 1 else None
    programs = [_Stage(given, order, plan, stage, blocking_sends, end).program(steps) for stage in range(stages)]
    slow = [1.0] * plan.num_ranks
    for rank, factor in (slowness or {}).items():
        if rank not in range(plan.num_ranks) or not 0 < factor < math.inf:
            ranks = f"ranks 0 to {plan.num_ranks - 1}"
            raise InputError(f"slowness {{{rank}: {factor}}} must map one of {ranks} to a positive factor, as in 1.1")
        slow[rank] = factor
    choices = Choices(methods=Methods({}), folded=folded)
    lowered = lower(programs, plan, _NoFabric(plan.num_ranks), [], slowness=slow, choices=choices)
    return Run(lowered=lowered, record=play_by(engine, lowered.program, []), steps=steps, ranks=range(plan.num_ranks))


def seconds_between_steps(run: Run) -> float:
    """The time from the end of one step to the end of the next, as a training log shows it: the last two steps' of a
    run.  Of a run of one step its length.

    Differs from the length of a step where stages go on without waiting for each other: they are in two steps at once.
    """
    spans = run.spans
    ends = [float(spans.end[spans.step == step].max()) for step in range(run.steps)]
    return ends[-1] - (ends[-2] if len(ends) > 1 else 0.0)


def _require(steps: int, optimizer_sync: str, sync: float) -> None:
    if steps < 1:
        raise InputError(f"steps {steps!r} must be at least 1")
    if optimizer_sync not in ("all_reduce", "post_validation"):
        raise InputError(f"optimizer_sync {optimizer_sync!r} must be all_reduce or post_validation")
    require_seconds("sync", sync)


_item: Callable[[tuple[object, ...]], Item] = partial(tuple.__new__, Item)
_need: Callable[[tuple[object, ...]], Need] = partial(tuple.__new__, Need)
"""An Item and a Need of all their fields: 150 and 140 ns instead of 240 and 200, half a million in deep pipelines."""

_Key = tuple[str, int, int, int]
"""What an action makes: "F", "B" or "W", in this step, of this microbatch, on this slice of the model."""


class _Part(NamedTuple):
    """What is the same of all actions of a kind on a chunk of a stage, of microbatches on one route.

    It makes ``made`` of slice ``here``, and waits for ``source``: its stage (-1 for nothing), the slice there, and is
    that the stage itself?  ``send``, on ``lane``, takes what it made to another stage.
    """

    segment: Segment
    made: str
    here: int
    source: tuple[int, int, bool]
    lane: str
    send: Segment | None


class _Stage:
    """The program of one stage in the making.  ``end`` is the all-reduce over the stages before the optimizer, or
    None."""

    def __init__(
        self, costs: StageCosts, schedule: Schedule, plan: Plan, stage: int, blocking: bool, end: float | None
    ) -> None:
        self._costs, self._schedule, self._plan, self._stage = costs, schedule, plan, stage
        self._blocking, self._end = blocking, end
        self._lanes = Lanes(stage, pipelined=plan.pp > 1)
        self._parts: dict[tuple[str, int, int], _Part] = {}

    def program(self, steps: int) -> StageProgram:
        for step in range(steps):
            self._pipeline(step)
            self._finish(step)
        return self._lanes.program()

    def _pipeline(self, step: int) -> None:
        """The row, in order.  Of a fused pair [F|B] the first half waits for what both need; what both make is there at
        the end of the second, and is sent behind it."""
        row, firsts = self._schedule.rows[self._stage], frozenset(self._schedule.fused_at(self._stage))
        put = self._lanes.put
        halves: list[tuple[_Part, _Key, Action]] = []
        for position, action in enumerate(row):
            part, (_, microbatch, chunk) = self._part(action), action
            key = part.made, step, microbatch, part.here
            if position in firsts:
                other = row[position + 1]
                needs = _needs(part, step, microbatch) + _needs(self._part(other), step, other.microbatch)
                put(MAIN, Item(part.segment, ("half", *key), needs, step, chunk, microbatch))
                halves.append((part, key, action))
                continue
            if halves:
                put(MAIN, Item(part.segment, key, (), step, chunk, microbatch, (halves[0][1],)))
                self._send(*halves.pop())
            else:
                put(MAIN, _item((part.segment, key, _needs(part, step, microbatch), step, chunk, microbatch, ())))
            self._send(part, key, action)

    def _part(self, action: Action) -> _Part:
        """What it has in common with others."""
        kind, microbatch, chunk = action
        name = kind, chunk, self._schedule.route_of[microbatch]
        known = self._parts.get(name)
        if known is None:
            known = self._parts[name] = self._make(action)
        return known

    def _make(self, action: Action) -> _Part:
        schedule, stage, made = self._schedule, self._stage, _makes(action)
        here = schedule.virtual_stage(action.microbatch, stage, action.chunk)
        source, _ = _neighbours(schedule, stage, action)
        target = receiver(schedule, stage, action)
        lane = MAIN if self._blocking else f"send {made}"
        send = None
        if target is not None:
            seconds = self._costs.of(stage, action.chunk).send
            send = self._lanes.once((lane, made, target, seconds), lambda: _send(made, target, seconds, lane))
        waits = -1, -1, True
        if source is not None and action.kind != "W":
            waits = source[0], here + (-1 if made == "F" else 1), source[0] == stage
        return _Part(self._pass(action), made, here, waits, lane, send)

    def _pass(self, action: Action) -> Segment:
        kind, chunk = action.kind, action.chunk
        seconds = self._costs.seconds(kind, self._stage, chunk)
        costs = self._costs.of(self._stage, chunk)
        if receiver(self._schedule, self._stage, action) is not None:
            seconds += costs.send_launch
        return self._lanes.once((kind, chunk, seconds), lambda: _pass(kind, seconds, costs, self._plan.tp))

    def _send(self, part: _Part, key: _Key, done: Action) -> None:
        """What an action has made, to whom it goes."""
        if part.send is not None:
            needs = (_need((self._stage, key)),)
            _, microbatch, chunk = done
            self._lanes.put(part.lane, _item((part.send, ("send", *key), needs, key[1], chunk, microbatch, ())))

    def _finish(self, step: int) -> None:
        """Gradients over dp, agreement of the stages, optimizer."""
        grad_reduce, optimizer = self._costs.after(self._stage)
        if self._plan.dp > 1 and grad_reduce:
            self._block("grad_reduce", Op(Timed("dp", grad_reduce), "dp", "all_reduce", "gradients"), step)
        if self._end is not None:
            stream = "pp" if self._plan.pp > 1 else "tp"
            self._block("sync", Op(Timed("model", self._end), stream, "all_reduce", "gradient_norm"), step)
        if optimizer:
            self._block("optimizer", Op(Compute(optimizer), "compute", "optimizer", "optimizer"), step)

    def _block(self, key: str, op: Op, step: int) -> None:
        self._lanes.put(MAIN, Item(self._lanes.once(key, lambda: Segment((op,))), (key, step), (), step))


def _needs(part: _Part, step: int, microbatch: int) -> tuple[Need, ...]:
    """What an action waits for besides its lane."""
    stage, there, own = part.source
    if stage < 0:
        return ()
    key = part.made, step, microbatch, there
    return (_need((stage, key if own else ("send", *key))),)


def _makes(action: Action) -> str:
    """What is handed on: I makes what B makes, for the stage before."""
    return "B" if action.kind == "I" else action.kind


def receiver(schedule: Schedule, stage: int, action: Action) -> int | None:
    """The other stage that waits for what an action makes, if there is one."""
    _, target = _neighbours(schedule, stage, action)
    return None if action.kind == "W" or target is None or target[0] == stage else target[0]


def _neighbours(schedule: Schedule, stage: int, action: Action) -> tuple[Hop | None, Hop | None]:
    """Where the action's input comes from and where its result goes."""
    before = schedule.previous_hop(action.microbatch, stage, action.chunk)
    after = schedule.next_hop(action.microbatch, stage, action.chunk)
    return (before, after) if action.kind == "F" else (after, before)


def _send(kind: str, to_stage: int, seconds: float, lane: str) -> Segment:
    """A tensor over a stage boundary."""
    name = "activation" if kind == "F" else "gradient"
    return Segment((Op(Transfer(to_stage, 0.0, seconds), "pp", "send", name, lane=lane),))


_NAMES = {"F": "forward", "B": "backward", "I": "input_grad", "W": "weight_grad"}


def _pass(kind: str, seconds: float, costs: Costs, tp: int) -> Segment:
    """A pass of a chunk: compute; where it has collectives (W has none), in equal parts with one behind each."""
    name = _NAMES[kind]
    if kind == "W" or tp == 1 or not costs.tensor_parallel or not costs.collectives:
        return Segment((Op(Compute(seconds), "compute", name, name),))
    ops = []
    for _ in range(costs.collectives):
        ops.append(Op(Compute(seconds / costs.collectives), "compute", name, name))
        ops.append(Op(Timed("tp", costs.tensor_parallel), "tp", "all_reduce", name))
    return Segment(tuple(ops))


class _NoFabric:
    """A cluster without links: nothing is moved, durations are given."""

    def __init__(self, num_ranks: int) -> None:
        self.host_of = range(num_ranks)

    def spread(self, src: int, dst: int, flow: int = 0) -> Spread:
        return ()

    def together(self, src: Ints, dst: Ints, flow: Ints, weight: Floats) -> tuple[Floats, float]:
        return np.zeros(0), 0.0

    def routes(self, src: Ints, dst: Ints, flow: Ints) -> tuple[Ints, Ints, Floats, Floats]:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(len(src))

    def latencies(self, row: Ints, link: Ints, fraction: Floats, rows: int) -> Floats:
        return np.zeros(rows)

    def spread_latency(self, spread: Spread) -> float:
        return 0.0

    def uplinks(self, gpu: int) -> tuple[str, ...]:
        return (str(gpu),)

    def nvswitch(self, gpu: int) -> str:
        return ""

    def switch_ways(self, gpus: Sequence[int], turn: int) -> tuple[tuple[Spread, Spread], ...]:
        return tuple(((), ()) for _ in gpus)

    def host_way(self, gpu: int, direction: str) -> Spread:
        return ()
