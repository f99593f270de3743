"""A step from given times instead of a model and a device: textbook examples, and a profile that somebody measured.

The same stage programs, folding, engine and metrics as for a scenario; only durations are given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simcluster.collectives.description import Floats, Ints
from simcluster.engine import play
from simcluster.errors import InputError
from simcluster.lower import Choices, lower
from simcluster.methods import Methods
from simcluster.ops import MAIN, Compute, Item, Need, Op, Segment, StageProgram, Timed, Transfer
from simcluster.parallel import Plan
from simcluster.result import Run
from simcluster.schedules import Action, Hop, Schedule, schedule_function
from simcluster.traffic import Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of one microbatch on one stage (all its chunks together), and of what surrounds it.

    ``weight_grad`` is the part of ``backward`` that is W where the schedule splits it; left out, half of it.
    ``tensor_parallel`` is one blocking collective over tp, of which F and B have ``collectives`` each; ``send`` one
    stage boundary, beside computation; ``grad_reduce`` the blocking reduction over dp after the last B.
    """

    forward: float
    backward: float
    tensor_parallel: float = 0.0
    collectives: int = 2
    weight_grad: float | None = None
    send: float = 0.0
    grad_reduce: float = 0.0
    optimizer: float = 0.0

    def __post_init__(self) -> None:
        if self.weight_grad is not None and not 0 <= self.weight_grad <= self.backward:
            raise InputError(
                f"weight_grad {self.weight_grad!r} is W's part of backward {self.backward!r}: from 0 to all of it"
            )
        for name in ("forward", "backward", "tensor_parallel", "send", "grad_reduce", "optimizer"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} {getattr(self, name)!r} must be a finite number of seconds, 0 or more")
        if self.collectives < 0:
            raise InputError(f"collectives {self.collectives!r} must be how many F and B have of them, 0 or more")


def simulate_costs(
    costs: Costs,
    *,
    stages: int,
    microbatches: int,
    schedule: str = "1f1b",
    chunks: int = 1,
    tp: int = 1,
    dp: int = 1,
    slowness: Mapping[int, float] | None = None,
    folded: bool = True,
) -> Run:
    """Play one step of a pipeline with these times on tp x dp x stages ranks.

    ``slowness[rank]`` multiplies that rank's compute times.  Raises InputError as the schedule does, for a size below 1
    and for the slowness of a rank that is not there.
    """
    plan = Plan(tp=tp, dp=dp, pp=stages)
    order = schedule_function(schedule)(stages, microbatches, chunks)
    programs = [_stage(costs, order, plan, stage) for stage in range(stages)]
    slow = [1.0] * plan.num_ranks
    for rank, factor in (slowness or {}).items():
        if rank not in range(plan.num_ranks) or not 0 < factor < math.inf:
            ranks = f"ranks 0 to {plan.num_ranks - 1}"
            raise InputError(f"slowness {{{rank}: {factor}}} must map one of {ranks} to a positive factor, as in 1.1")
        slow[rank] = factor
    choices = Choices(methods=Methods({}), folded=folded)
    lowered = lower(programs, plan, _NoFabric(plan.num_ranks), [], slowness=slow, choices=choices)
    return Run(lowered=lowered, record=play(lowered.program, []), steps=1, ranks=range(plan.num_ranks))


def _stage(costs: Costs, schedule: Schedule, plan: Plan, stage: int) -> StageProgram:
    lanes: dict[str, list[Item]] = {MAIN: []}
    share = schedule.num_stages / len(schedule.routes[0])  # a second copy of the model does not make chunks smaller
    forward = _pass("forward", costs.forward * share, costs, plan.tp)
    weight = costs.backward / 2 if costs.weight_grad is None else costs.weight_grad
    segments = {
        "F": forward,
        "B": _pass("backward", costs.backward * share, costs, plan.tp),
        "I": _pass("input_grad", (costs.backward - weight) * share, costs, plan.tp),
        "W": Segment((Op(Compute(weight * share), "compute", "weight_grad", "weight_grad"),)),
    }
    sends: dict[tuple[str, int], Segment] = {}
    waiting: list[Action] = []  # the first half of a fused pair
    firsts = schedule.fused_at(stage)
    for position, action in enumerate(schedule.rows[stage]):
        pair = [*waiting, action]
        together = [*pair, schedule.rows[stage][position + 1]] if position in firsts else pair
        lanes[MAIN].append(_item(segments[action.kind], schedule, stage, action, together))
        waiting = [action] if position in firsts else []
        for done in () if waiting else pair:
            _, target = _neighbours(schedule, stage, done)
            if done.kind != "W" and target is not None and target[0] != stage:
                kind = _makes(done)
                send = sends.setdefault((kind, target[0]), _send(kind, target[0], costs))
                key = _key(schedule, stage, done)
                item = Item(send, ("send", *key), (Need(stage, key),), 0, done.chunk, done.microbatch)
                lanes.setdefault(f"send {kind}", []).append(item)
    if plan.dp > 1 and costs.grad_reduce:
        reduce = Op(Timed("dp", costs.grad_reduce), "dp", "all_reduce", "gradients")
        lanes[MAIN].append(Item(Segment((reduce,)), "grad_reduce"))
    if costs.optimizer:
        update = Op(Compute(costs.optimizer), "compute", "optimizer", "optimizer")
        lanes[MAIN].append(Item(Segment((update,)), "optimizer"))
    return StageProgram(stage, lanes)


def _item(segment: Segment, schedule: Schedule, stage: int, action: Action, together: Sequence[Action]) -> Item:
    """One action.  Of a fused pair ([F|B] is ``together``) the first half waits for what both need, and what both make
    is there at the end of the second."""
    first, last = together[0], together[-1]
    needs = tuple(
        need for half in (together if action == first else ()) for need in _needs(schedule, stage, half)
    )  # fmt: skip
    if len(together) == 1:
        return Item(segment, _key(schedule, stage, action), needs, 0, action.chunk, action.microbatch)
    if action == first:
        return Item(segment, ("half", *_key(schedule, stage, first)), needs, 0, action.chunk, action.microbatch)
    made = _key(schedule, stage, last), (_key(schedule, stage, first),)
    return Item(segment, made[0], (), 0, action.chunk, action.microbatch, made[1])


def _makes(action: Action) -> str:
    """What is handed on: I makes what B makes, for the stage before."""
    return "B" if action.kind == "I" else action.kind


def _key(schedule: Schedule, stage: int, action: Action) -> tuple[str, int, int]:
    here = schedule.virtual_stage(action.microbatch, stage, action.chunk)
    return _makes(action), action.microbatch, here


def _neighbours(schedule: Schedule, stage: int, action: Action) -> tuple[Hop | None, Hop | None]:
    """Where the action's input comes from and where its result goes."""
    before = schedule.previous_hop(action.microbatch, stage, action.chunk)
    after = schedule.next_hop(action.microbatch, stage, action.chunk)
    return (before, after) if action.kind == "F" else (after, before)


def _needs(schedule: Schedule, stage: int, action: Action) -> tuple[Need, ...]:
    source, _ = _neighbours(schedule, stage, action)
    if source is None or action.kind == "W":
        return ()
    kind, microbatch, here = _key(schedule, stage, action)
    key = (kind, microbatch, here + (-1 if kind == "F" else 1))
    return (Need(source[0], key if source[0] == stage else ("send", *key)),)


def _send(kind: str, to_stage: int, costs: Costs) -> Segment:
    """A tensor over a stage boundary, on a lane of its own."""
    name = "activation" if kind == "F" else "gradient"
    return Segment((Op(Transfer(to_stage, 0.0, costs.send), "pp", "send", name, lane=f"send {kind}"),))


def _pass(kind: str, seconds: float, costs: Costs, tp: int) -> Segment:
    """F or B of a chunk: compute in equal parts with a collective behind each."""
    if tp == 1 or not costs.tensor_parallel or not costs.collectives:
        return Segment((Op(Compute(seconds), "compute", kind, kind),))
    ops = []
    for _ in range(costs.collectives):
        ops.append(Op(Compute(seconds / costs.collectives), "compute", kind, kind))
        ops.append(Op(Timed("tp", costs.tensor_parallel), "tp", "all_reduce", kind))
    return Segment(tuple(ops))


class _NoFabric:
    """A cluster without links: nothing is moved, durations are given."""

    def __init__(self, num_ranks: int) -> None:
        self.host_of = range(num_ranks)

    def spread(self, src: int, dst: int, flow: int = 0) -> Spread:
        return ()

    def together(self, src: Ints, dst: Ints, flow: Ints, weight: Floats) -> tuple[Floats, float]:
        return np.zeros(0), 0.0

    def spread_latency(self, spread: Spread) -> float:
        return 0.0

    def uplinks(self, gpu: int) -> tuple[str, ...]:
        return (str(gpu),)

    def nvswitch(self, gpu: int) -> str:
        return ""

    def switch_ways(self, gpus: Sequence[int], turn: int) -> tuple[tuple[Spread, Spread], ...]:
        return tuple(((), ()) for _ in gpus)
