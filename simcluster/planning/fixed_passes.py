"""Passes and sends of given times as segments of ops.  Pure; imports ops and costs."""

from __future__ import annotations

from simcluster.planning.fixed_costs import Costs
from simcluster.planning.ops import Compute, Op, Segment, Timed, Transfer

_NAMES = {"F": "forward", "B": "backward", "I": "input_grad", "W": "weight_grad"}


def send_of(kind: str, to_stage: int, seconds: float, lane: str) -> Segment:
    """A tensor over a stage boundary."""
    name = "activation" if kind == "F" else "gradient"
    return Segment((Op(Transfer(to_stage, 0.0, seconds), "pp", "send", name, lane=lane),))


def pass_of(kind: str, seconds: float, costs: Costs, tp: int) -> Segment:
    """A pass of a chunk: compute; where it has collectives (W has none), in equal parts with one behind each."""
    name = _NAMES[kind]
    if kind == "W" or tp == 1 or not costs.tensor_parallel or not costs.collectives:
        return Segment((Op(Compute(seconds), "compute", name, name),))
    ops = []
    for _ in range(costs.collectives):
        ops.append(Op(Compute(seconds / costs.collectives), "compute", name, name))
        ops.append(Op(Timed("tp", costs.tensor_parallel), "tp", "all_reduce", name))
    return Segment(tuple(ops))
