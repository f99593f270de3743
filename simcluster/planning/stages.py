"""The program of every stage: the schedule's actions as items, with what crosses stages and what travels over dp.

One step of a stage: its row of the schedule, a send behind every F and every B (or I, where the schedule splits the
backward) that has a neighbour (``boundaries``), pairs [F|B] one after the other or beside each other (``pairs``);
before, beside and behind it what the replicas of the stage do together, and the optimizer (``replicas``).  Pure.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from simcluster.base.gc_paused import collector_off
from simcluster.planning.boundaries import Boundaries, Key
from simcluster.planning.job import Job
from simcluster.planning.offload import OffloadedActivations
from simcluster.planning.offload_layers import replicas_of
from simcluster.planning.ops import MAIN, Item, Need, Segment, StageProgram
from simcluster.planning.pairs import Pairs
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.replicas import ActionPart
from simcluster.schedules import Action


@collector_off()
def stage_programs(job: Job) -> list[StageProgram]:
    """The items of every stage, in order, lane by lane."""
    return [_Stage(job, stage).program() for stage in range(job.plan.pp)]


class _Stage:
    def __init__(self, job: Job, stage: int) -> None:
        self._job = job
        self._stage = stage
        self._row = job.schedule.rows[stage]
        self._casting = job.casting(stage)
        self._lanes = ProgramBuilder(stage, pipelined=job.plan.pp > 1)
        self._segments: dict[Hashable, Segment] = {}
        self._boundaries = Boundaries(job, self._lanes)
        self._offloaded = OffloadedActivations(job, self._lanes)
        self._replicas = replicas_of(job, self._lanes)
        self._pairs = Pairs(self._lanes, self._replicas.after)

    def program(self) -> StageProgram:
        for step in range(self._job.steps):
            self._replicas.before(step)
            self._pipeline(step)
            if self._job.trains:
                self._replicas.finish(step)
            if self._job.saved:
                self._job.saved.put(self._lanes, step)
        return self._lanes.program()

    def _pipeline(self, step: int) -> None:
        """The row, in order.

        Of a fused pair the first half waits for what both need; what both make is there when the second ends.
        """
        halves = self._job.schedule.fused_at(self._stage)
        held: list[Action] = []
        meets = self._boundaries.rendezvous(self._row, halves)
        for position, action in enumerate(self._row):
            if position in meets:
                self._boundaries.meet(self._row[position : position + meets[position]], step)
            if position in halves:
                held = [action]
                continue
            if held:
                self._pair(held[0], action, step)
            else:
                self._act(action, step, self._needs(action, step), self._boundaries.key(action, step), ())
            for done in (*held, action):
                self._boundaries.send(done, step)
                self._offloaded.after(done, step)
            held = []
        self._boundaries.meet((), step)

    def _needs(self, action: Action, step: int) -> tuple[Need, ...]:
        return self._boundaries.needs(action, step) + self._offloaded.needs(action, step)

    def _pair(self, first: Action, second: Action, step: int) -> None:
        keys = [self._boundaries.key(action, step) for action in (first, second)]
        needs = self._needs(first, step) + self._needs(second, step)
        if self._job.overlap_pairs:
            actions = first, second
            self._pairs.put(actions, [self._parts(action, step) for action in actions], step, needs, keys)
        else:
            self._act(first, step, needs, ("half", *keys[0]), ())
            self._act(second, step, (), keys[1], (keys[0],))

    def _act(
        self, action: Action, step: int, needs: tuple[Need, ...], key: tuple[object, ...], also: tuple[Key, ...]
    ) -> None:
        """One action, in one piece or in the parts that its replicas cut it into."""
        parts = self._parts(action, step)
        for index, (part, segment) in enumerate(parts):
            final = index == len(parts) - 1
            name = key if final else (*key, index)
            item = Item(
                segment, name, needs + part.needs, step, action.chunk, action.microbatch, also if final else ()
            )  # fmt: skip
            self._lanes.put(MAIN, item)
            needs = ()
            self._replicas.after(action, step, part, name)

    def _parts(self, action: Action, step: int) -> list[tuple[ActionPart, Segment]]:
        split, casts = self._boundaries.arrives_split(action), action in self._casting
        return [
            (part, self._segment(action.kind, part, boundary=split and index == 0, begins=index == 0, casts=casts))
            for index, part in enumerate(self._replicas.parts(action, step))
        ]

    def _segment(self, kind: str, part: ActionPart, *, boundary: bool, begins: bool, casts: bool) -> Segment:
        name = kind, part.work, boundary, begins, casts, part.memory
        found = self._segments.get(name)
        if found is None:
            passes, work = self._job.passes, replace(part.work, boundary=boundary, begins=begins, casts=casts)
            make = {"F": passes.forward, "B": passes.backward, "I": passes.input_grad, "W": passes.weight_grad}[kind]
            plain = self._lanes.once((kind, work), lambda: make(work))
            found = self._segments[name] = self._lanes.holding((kind, work), plain, part.memory)
        return found
