"""A step from given times instead of a model and a device: textbook examples, and a profile that somebody measured.

The same stage programs, folding, engine and metrics as for a scenario; only durations are given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simcluster.engine import play
from simcluster.errors import InputError
from simcluster.lower import Choices, lower
from simcluster.methods import Methods
from simcluster.ops import MAIN, Compute, Item, Need, Op, Segment, StageProgram, Timed, Transfer
from simcluster.parallel import Plan
from simcluster.result import Run
from simcluster.schedules import Action, Schedule, schedule_function
from simcluster.traffic import Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of one microbatch on one stage (all its chunks together), and of what surrounds it.

    ``tensor_parallel`` is one blocking collective over tp, of which F and B have ``collectives`` each; ``send`` one
    stage boundary, beside computation; ``grad_reduce`` the blocking reduction over dp after the last B.
    """

    forward: float
    backward: float
    tensor_parallel: float = 0.0
    collectives: int = 2
    send: float = 0.0
    grad_reduce: float = 0.0
    optimizer: float = 0.0

    def __post_init__(self) -> None:
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
    share = 1.0 / schedule.num_chunks
    forward = _pass("forward", costs.forward * share, costs, plan.tp)
    backward = _pass("backward", costs.backward * share, costs, plan.tp)
    sends: dict[tuple[str, int], Segment] = {}
    for action in schedule.rows[stage]:
        here = schedule.virtual_stage(action.microbatch, stage, action.chunk)
        before = schedule.previous_hop(action.microbatch, stage, action.chunk)
        after = schedule.next_hop(action.microbatch, stage, action.chunk)
        source, target, step = (before, after, -1) if action.kind == "F" else (after, before, 1)
        segment = forward if action.kind == "F" else backward
        needs = () if source is None else (_need(action, source, stage, here + step),)
        key = (action.kind, action.microbatch, here)
        lanes[MAIN].append(Item(segment, key, needs, 0, action.chunk, action.microbatch))
        if target is not None and target[0] != stage:
            send = sends.setdefault((action.kind, target[0]), _send(action.kind, target[0], costs))
            item = Item(send, ("send", *key), (Need(stage, key),), 0, action.chunk, action.microbatch)
            lanes.setdefault(f"send {action.kind}", []).append(item)
    if plan.dp > 1 and costs.grad_reduce:
        reduce = Op(Timed("dp", costs.grad_reduce), "dp", "all_reduce", "gradients")
        lanes[MAIN].append(Item(Segment((reduce,)), "grad_reduce"))
    if costs.optimizer:
        update = Op(Compute(costs.optimizer), "compute", "optimizer", "optimizer")
        lanes[MAIN].append(Item(Segment((update,)), "optimizer"))
    return StageProgram(stage, lanes)


def _need(action: Action, source: tuple[int, int], stage: int, virtual: int) -> Need:
    key = (action.kind, action.microbatch, virtual)
    return Need(source[0], key if source[0] == stage else ("send", *key))


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

    def spread_latency(self, spread: Spread) -> float:
        return 0.0

    def uplinks(self, gpu: int) -> tuple[str, ...]:
        return (str(gpu),)

    def nvswitch(self, gpu: int) -> str:
        return ""

    def switch_ways(self, gpus: Sequence[int], turn: int) -> tuple[tuple[Spread, Spread], ...]:
        return tuple(((), ()) for _ in gpus)
