"""Passes and sends of given times as segments of ops.  Pure."""

from __future__ import annotations

from fractions import Fraction

from simcluster.planning.fixed_costs import Costs
from simcluster.planning.ops import Op, Segment
from simcluster.planning.works import Compute, Timed, Transfer
from simcluster.schedules.actions import PASS_NAMES, Kind


def send_of(kind: str, to_stage: int, seconds: float, lane: str) -> Segment:
    """A tensor over a stage boundary."""
    name = "activation" if kind == "F" else "gradient"
    return Segment((Op(Transfer(to_stage, 0.0, seconds), "pp", "send", name, lane=lane),))


def pass_of(kind: Kind, seconds: float, costs: Costs, tp: int) -> Segment:
    """A pass of a chunk: compute; where it has collectives (W has none), in equal parts with one behind each."""
    return pieces_of(kind, seconds, costs, tp, 1)[0]


def pieces_of(kind: Kind, seconds: float, costs: Costs, tp: int, pieces: int) -> list[Segment]:
    """The same pass in so many pieces of equal compute; a collective belongs to the piece that it follows."""
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
            ops.append(Op(Timed("tp", costs.tensor_parallel), "tp", "all_reduce", name))
        if here == cuts[len(found)]:
            found.append(Segment(tuple(ops)))
            ops = []
    return found


def reduction_of(seconds: float, lane: str) -> Segment:
    """One bucket of gradients over dp."""
    return Segment((Op(Timed("dp", seconds), "dp", "all_reduce", "gradients", lane=lane),))
