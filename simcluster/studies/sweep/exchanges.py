"""Costs of what stages send each other, and of their ops after the last action of a step.

They are the ops, collectives and links of a full run, each asked for once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from simcluster.planning.job import Job
from simcluster.planning.ops import MAIN, Op, Segment
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.replicas import Replicas
from simcluster.planning.segments import Pass
from simcluster.planning.works import Collective, Compute, Host, Transfer
from simcluster.schedules import Schedule
from simcluster.schedules.actions import Route
from simcluster.studies.sweep.order import ActionWork, Sent
from simcluster.studies.sweep.stage_network import Calls, NotQuickError, RepresentativeCalls, StageCall
from simcluster.studies.sweep.step_tables import Costs, EndOp, EndOps, TimedOp


def hops_of(schedule: Schedule) -> tuple[Sent, ...]:
    """Return the sends between stages, also those of variants whose chunks continue on the first stage."""
    return _hops(schedule.num_stages, schedule.routes)


@lru_cache(maxsize=64)
def _hops(stages: int, routes: tuple[Route, ...]) -> tuple[Sent, ...]:
    found: dict[Sent, None] = {}
    around = [*pairwise(range(stages)), (stages - 1, 0)] if stages > 1 else []
    between = [(one, other) for route in routes for (one, _), (other, _) in pairwise(route) if one != other]
    for one, other in (*around, *between):
        found[Sent("F", one, other)] = None
        found[Sent("B", other, one)] = None
    return tuple(found)


class Stages:
    """The layers of a layout's stages, and their ops after the last action, for any number of microbatches."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._ops = _ends(job)
        self._parts: dict[tuple[int, int, bool, bool], Pass] = {}
        self._ends: dict[RepresentativeCalls, EndOps] = {}

    def part(self, work: ActionWork) -> Pass:
        """Return the layers that an action works through."""
        name = work[1:]
        if name not in self._parts:
            whole = self._job.whole(work.stage, work.chunk)
            gathers = work.arrives and self._job.gather_boundary
            self._parts[name] = replace(whole, boundary=gathers, casts=work.casts)
        return self._parts[name]

    def calls(self, hops: Sequence[Sent], *, others: bool) -> Iterator[StageCall]:
        """Yield a step's calls of the network outside passes, and those of ``others`` with another ZeRO."""
        yield from _calls(self._ops)
        for hop in hops:
            yield StageCall(hop.stage, hop.target, "send", self._job.send_bytes, transfer(self._job, hop).lane)
        if others:
            data = replace(self._job.data_parallel, zero=0 if self._job.data_parallel.zero else 1)
            yield from _calls(_ends(replace(self._job, data_parallel=data)))

    def on(self, drawn: RepresentativeCalls) -> EndOps:
        """Return what they do after their last action, with its costs on these links."""
        if drawn not in self._ends:
            self._ends[drawn] = EndOps(
                [_end_op(drawn, stage, *each) for stage, ops in enumerate(self._ops) for each in ops]
            )
        return self._ends[drawn]


class Exchanges:
    """The sends of a layout and the ends of its stages, for one size of a microbatch."""

    def __init__(self, job: Job, stages: Stages, drawn: RepresentativeCalls) -> None:
        self.ends = stages.on(drawn)
        self._job, self._drawn = job, drawn
        self._sends: dict[Sent, Costs] = {}

    def send(self, work: Sent) -> Costs:
        """Return the cost of a send."""
        found = self._sends.get(work)
        if found is None:
            op = transfer(self._job, work)
            _, communication = self._drawn.communication(work.stage, op)
            found = self._sends[work] = (TimedOp(communication=communication, lane=op.lane),)
        return found


def proved(ops: Iterable[Op]) -> None:
    """Raise NotQuickError for work of a kind that quick steps are not proved for in passes and at the end."""
    for op in ops:
        if type(op.work) not in (Compute, Collective, Host):
            raise NotQuickError(f"quick steps are not proved for {type(op.work).__name__}")


def transfer(job: Job, hop: Sent) -> Op:
    """Return the op of a send."""
    lane = f"send {hop.kind}" if job.overlap_sends else MAIN
    return Op(Transfer(hop.target, job.send_bytes), "pp", "send", hop.kind, lane=lane)


def passes_calls(collectives: Sequence[Collective], stages: int) -> Calls:
    """Return the calls of passes with these collectives."""
    return lambda: (StageCall(stage, "tp", work.kind, work.size) for stage in range(stages) for work in collectives)


def _calls(ends: Sequence[Sequence[tuple[Hashable, Op]]]) -> Iterator[StageCall]:
    for stage, ops in enumerate(ends):
        for _, op in ops:
            if op.work.moves:
                yield StageCall(stage, op.work.axis, op.work.moves, op.work.size)


def _ends(job: Job) -> list[list[tuple[Hashable, Op]]]:
    """Return the ops after every stage's last action, with the names under which they meet."""
    found: list[list[tuple[Hashable, Op]]] = []
    known: dict[Hashable, int] = {}  # stages that hold as much end alike
    for stage in range(job.plan.pp):
        held = [job.whole(stage, chunk) for chunk in range(job.schedule.num_chunks)]
        like = known.setdefault(tuple((len(each.layers), each.embedding, each.lm_head) for each in held), stage)
        if like < stage:
            found.append(found[like])
            continue
        lanes = ProgramBuilder(stage, pipelined=job.plan.pp > 1)
        Replicas(job, lanes).finish(0)
        items = lanes.program().lanes
        if list(items) != [MAIN]:
            raise NotQuickError("something goes on beside the end of a step")
        found.append([(item.key, op) for item in items[MAIN] for op in item.segment.ops])
        proved(op for _, op in found[-1])
    return found


def _end_op(drawn: RepresentativeCalls, stage: int, key: Hashable, op: Op) -> EndOp:
    (timed,) = drawn.ops(stage, Segment((op,)))
    if timed.communication is None:
        return EndOp(stage, timed)
    group, _ = drawn.communication(stage, op)
    return EndOp(stage, timed, (group, key))
