"""Ops of every pipeline stage: passes in schedule order, sends between stages, and data-parallel communication.

One step of a stage: its row of the schedule, a send after every F and every B (or I, where the schedule splits the
backward) that has a neighbour (``stage_boundaries``), and pairs [F|B] in turn or overlapping (``FusedPairBuilder``).
Before, during and after it, the replicas of the stage communicate and run the optimizer (``replicas``). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from simcluster.base.gc_pause import pause_gc
from simcluster.planning.fsdp_builder import FsdpBuilder
from simcluster.planning.job import Job
from simcluster.planning.offload import ActivationCopyBuilder
from simcluster.planning.offload_layers import LayerOffloadBuilder
from simcluster.planning.ops import MAIN, Dependency, Op, Segment, StageProgram, WorkItem
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.replicas import ActionPart, DataParallelBuilder
from simcluster.planning.stage_boundaries import Key, SendReceiveBuilder
from simcluster.schedules import Action


@pause_gc()
def build_stage_programs(job: Job) -> list[StageProgram]:
    """Return the program of every stage of a job: work items in order, one list per lane."""
    return [_StageBuilder(job, stage).build_program() for stage in range(job.plan.pp)]


class _StageBuilder:
    def __init__(self, job: Job, stage: int) -> None:
        self._job = job
        self._stage = stage
        self._row = job.schedule.rows[stage]
        self._casting = job.casting_actions(stage) if job.casts_weights else ()
        self._lanes = ProgramBuilder(stage, pipelined=job.plan.pp > 1)
        self._boundaries = SendReceiveBuilder(job, self._lanes)
        replicas = (FsdpBuilder if job.data_parallel.zero == 3 else DataParallelBuilder)(job, self._lanes)
        self._offloaded = ActivationCopyBuilder(job, self._lanes) if job.offload.activations else None
        self._replicas = LayerOffloadBuilder(job, self._lanes, replicas) if job.offload.activations else replicas
        self._pairs = FusedPairBuilder(self._lanes, self._replicas.add_after_part)

    def build_program(self) -> StageProgram:
        for step in range(self._job.steps):
            self._replicas.add_first_gathers(step)
            self._add_schedule_row(step)
            if self._job.trains:
                self._replicas.finish_step(step)
            if self._job.checkpoint:
                self._job.checkpoint.add_checkpoint(self._lanes, step)
        return self._lanes.build_program()

    def _add_schedule_row(self, step: int) -> None:
        """Add the stage's scheduled actions (passes of microbatches) in order.

        The first half of a fused pair waits for the inputs of both; the outputs of both exist when the second half
        ends.
        """
        halves = self._job.schedule.fused_positions(self._stage)
        held: list[Action] = []
        meets = self._boundaries.find_rendezvous(self._row, halves)
        for position, action in enumerate(self._row):
            if position in meets:
                self._boundaries.add_rendezvous(self._row[position : position + meets[position]], step)
            if position in halves:
                held = [action]
                continue
            if held:
                self._add_pair(held[0], action, step)
            else:
                needs, key = self._action_dependencies(action, step), self._boundaries.output_key(action, step)
                self._add_action(action, step, needs, key, ())
            for done in (*held, action):
                self._boundaries.add_output_send(done, step)
                if self._offloaded:
                    self._offloaded.add_copies_after(done, step)
            held = []
        if meets:
            self._boundaries.add_rendezvous((), step)

    def _action_dependencies(self, action: Action, step: int) -> tuple[Dependency, ...]:
        needs = self._boundaries.input_dependencies(action, step)
        return needs + self._offloaded.awaited_copies(action, step) if self._offloaded else needs

    def _add_pair(self, first: Action, second: Action, step: int) -> None:
        keys = [self._boundaries.output_key(action, step) for action in (first, second)]
        needs = self._action_dependencies(first, step) + self._action_dependencies(second, step)
        if self._job.overlap_pairs:
            actions = first, second
            self._pairs.add_pair(
                actions, [self._action_segments(action, step) for action in actions], step, needs, keys
            )
        else:
            self._add_action(first, step, needs, ("half", *keys[0]), ())
            self._add_action(second, step, (), keys[1], (keys[0],))

    def _add_action(
        self, action: Action, step: int, needs: tuple[Dependency, ...], key: tuple[object, ...], extras: tuple[Key, ...]
    ) -> None:
        parts = self._action_segments(action, step)
        for index, (part, segment) in enumerate(parts):
            final = index == len(parts) - 1
            name = key if final else (*key, index)
            item = WorkItem(
                segment, name, needs + part.needs, step, action.chunk, action.microbatch, extras if final else ()
            )  # fmt: skip
            self._lanes.append_item(MAIN, item)
            needs = ()
            self._replicas.add_after_part(action, step, part, name)

    def _action_segments(self, action: Action, step: int) -> list[tuple[ActionPart, Segment]]:
        split = self._boundaries.input_arrives_split(action)
        return [
            (part, self._segment_of_part(action, part, boundary=split and index == 0, begins=index == 0))
            for index, part in enumerate(self._replicas.split_action(action, step))
        ]

    def _segment_of_part(self, action: Action, part: ActionPart, *, boundary: bool, begins: bool) -> Segment:
        casts = action in self._casting

        def make() -> Segment:
            work = replace(part.work, gathers_input=boundary, starts_action=begins, casts_weights=casts)
            plain = self._job.pass_maker.segment(action.kind, work)
            return plain.with_memory(part.memory) if part.memory else plain

        name = action.kind, part.work, boundary, begins, casts, part.memory
        return self._lanes.cached_segment(name, make)


# --- fused pairs [F|B] whose halves overlap -------------------------------------------------------------------------

Parts = Sequence[tuple[ActionPart, Segment]]
"""Parts of an action, each with its segment."""


class FusedPairPiece(NamedTuple):
    """Consecutive ops, on one lane, of the forward or of the backward in a fused pair (the two overlap).

    ``waits`` are the places of earlier pieces of the half that it waits for, other than the one before it on its lane.
    """

    segment: Segment
    lane: str
    waits: tuple[int, ...]


class FusedPairHalf(NamedTuple):
    """The forward or the backward of a fused pair (the two overlap), assembled part by part.

    It has its pieces, the needs of the first piece of each part, and the parts by their last pieces.
    """

    pieces: list[FusedPairPiece]
    needs: dict[int, tuple[Dependency, ...]]
    ends: dict[int, ActionPart]

    def append_part(self, pieces: Sequence[FusedPairPiece], part: ActionPart) -> None:
        """Append the pieces of the next part of the forward or backward."""
        begin = len(self.pieces)
        lane = self.pieces[-1].lane if begin else MAIN
        behind = (begin - 1,) if (lane, pieces[0].lane) != (MAIN, MAIN) and begin else ()
        self.needs[begin] = part.needs
        for place, piece in enumerate(pieces):
            waits = tuple([begin + other for other in piece.waits])
            self.pieces.append(piece._replace(waits=waits if place else behind + waits))
        self.ends[len(self.pieces) - 1] = part


class FusedPairBuilder:
    """Builder of a stage's fused pairs [F|B], a forward and a backward that overlap.

    ``after`` is called with the action, step and key of every part that ends.
    """

    def __init__(
        self, lanes: ProgramBuilder, after_part: Callable[[Action, int, ActionPart, tuple[object, ...]], None]
    ) -> None:
        self._lanes, self._after = lanes, after_part
        self._pieces: dict[Segment, tuple[FusedPairPiece, ...]] = {}

    def add_pair(
        self, actions: Sequence[Action], parts: Sequence[Parts], step: int, needs: tuple[Dependency, ...],
        keys: Sequence[Key],
    ) -> None:  # fmt: skip
        """Add a fused pair, alternating pieces of its forward and its backward."""
        halves = [self._make_half(own) for own in parts]
        order = list(interleave_halves([half.pieces for half in halves]))
        for turn, index in order:
            action, half = actions[turn], halves[turn]
            name: tuple[object, ...] = ("half", *keys[turn], index)
            segment, lane, waits = half.pieces[index]
            others = [("half", *keys[turn], each) for each in waits]
            also: tuple[Key, ...] = ()
            if lane != MAIN and (turn, index) in (order[0], order[-1]):  # the pair begins and ends on the main lane
                segment, lane = self._lanes.cached_segment((MAIN, segment), partial(_move_to_main, segment)), MAIN
            if (turn, index) == order[-1]:
                name, also = keys[1], (keys[0],)
                others.append(("half", *keys[1 - turn], len(halves[1 - turn].pieces) - 1))
            needs += half.needs.get(index, ()) + tuple([Dependency(self._lanes.stage, each) for each in others])
            if lane != MAIN and not waits:
                needs += self._lanes.main_lane_end()
            self._lanes.append_item(lane, WorkItem(segment, name, needs, step, action.chunk, action.microbatch, also))
            needs = ()
            if index in half.ends:
                self._after(action, step, half.ends[index], name)

    def _make_half(self, parts: Parts) -> FusedPairHalf:
        half = FusedPairHalf([], {}, {})
        for part, segment in parts:
            if segment not in self._pieces:
                self._pieces[segment] = cut_into_pieces(segment)
            half.append_part(self._pieces[segment], part)
        return half


def cut_into_pieces(segment: Segment) -> tuple[FusedPairPiece, ...]:
    """Cut a segment into pieces in order: compute stays on the main lane, each collective gets another lane."""
    lanes = [_pair_lane(op) for op in segment.ops]
    waits = _find_awaited_ops(segment.ops, lanes)
    awaited = {other for lane, others in zip(lanes, waits, strict=True) if lane != MAIN for other in others}
    begun: list[tuple[str, list[Op], tuple[int, ...]]] = []
    piece_of: list[int] = []
    last = -1  # op of the main lane
    for index, (op, lane) in enumerate(zip(segment.ops, lanes, strict=True)):
        before = [other for other in waits[index] if lane != MAIN or lanes[other] != MAIN]
        goes_on = lane == MAIN and last >= 0 and not before and last not in awaited
        if not goes_on:
            begun.append((lane, [], tuple(dict.fromkeys([piece_of[other] for other in before]))))
        piece_of.append(piece_of[last] if goes_on else len(begun) - 1)
        begun[piece_of[index]][1].append(replace(op, lane=lane, after=()))
        last = index if lane == MAIN else last
    return tuple([FusedPairPiece(Segment(tuple(ops)), lane, others) for lane, ops, others in begun])


def interleave_halves(halves: Sequence[Sequence[FusedPairPiece]]) -> Iterator[tuple[int, int]]:
    """Yield (half, piece index) in issue order; issue switches to the other half where one half would wait."""
    place, turn = [0, 0], 0
    while place[0] < len(halves[0]) or place[1] < len(halves[1]):
        begun = place[turn]
        for piece in halves[turn][begun:]:
            if place[turn] > begun and piece.lane == MAIN and piece.waits:
                break
            yield turn, place[turn]
            place[turn] += 1
        turn = 1 - turn


def _move_to_main(segment: Segment) -> Segment:
    return Segment(tuple([replace(op, lane=MAIN) for op in segment.ops]))


def _pair_lane(op: Op) -> str:
    """Return the lane of an op in a fused pair; collectives get separate lanes, to overlap with compute.

    On a lane that has ops inside of segments, too, these would come first.
    """
    if op.lane != MAIN:
        return f"pair {op.lane}"
    return f"pair {op.work.axis}" if op.work.axis else MAIN


def _find_awaited_ops(ops: Sequence[Op], lanes: Sequence[str]) -> list[tuple[int, ...]]:
    found = []
    main = -1
    for index, op in enumerate(ops):
        left = op.lane == MAIN and main >= 0 and (lanes[index] != MAIN or lanes[main] != MAIN)
        found.append((main, *op.after) if left else op.after)
        main = index if op.lane == MAIN else main
    return found
