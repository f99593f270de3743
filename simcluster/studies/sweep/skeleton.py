"""The program of a schedule before any duration: ops of one rank a stage, on lanes, with what each waits for.

The order of actions does not depend on what they cost, so variants with the same schedule share one skeleton, and only
durations and transfers are filled in.  Sends are asynchronous: the receiver is always ready.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simcluster.planning.ops import MAIN
from simcluster.programs.program import Meeting, Program, SpanRow
from simcluster.schedules import Action, Schedule


class ActionWork(NamedTuple):
    """What an action is: a letter F, B, I or W of a stage's chunk; ``arrives``: its input comes from another stage."""

    kind: str
    stage: int
    chunk: int
    arrives: bool


class Sent(NamedTuple):
    """What a send carries: an activation (of F) or a gradient, from a stage to another."""

    kind: str
    stage: int
    target: int


Name = tuple[str, int, int]
"""An output by what made it (F or B), its microbatch and the slice of the model."""


class Costed(NamedTuple):
    """What an op takes: seconds and rows of the timeline, or a meeting."""

    seconds: float
    rows: tuple[SpanRow, ...] = ()
    meeting: Meeting | None = None


@dataclass(frozen=True)
class Last:
    """An op of a stage behind its last action: what it takes, and the name under which it meets others."""

    costed: Costed
    name: object = None


class SkeletonPart(NamedTuple):
    """What all actions of a kind on a stage's chunk have in common, in a schedule that holds the model once.

    Each makes an output of slice ``place`` of the model, known as ``made`` (F or B), and needs that of slice ``needs``
    if that is on another stage; ``sent`` is how its own leaves.
    """

    work: ActionWork
    made: str
    place: int
    needs: int
    sent: Sent | None


def part_of(schedule: Schedule, stage: int, action: Action) -> SkeletonPart:
    """The part that an action belongs to."""
    made = "B" if action.kind == "I" else action.kind
    before = schedule.previous_hop(action.microbatch, stage, action.chunk)
    behind = schedule.next_hop(action.microbatch, stage, action.chunk)
    source, target = (before, behind) if made == "F" else (behind, before)
    arrives = made != "W" and source is not None and source[0] != stage
    leaves = made != "W" and target is not None and target[0] != stage
    place = schedule.virtual_stage(action.microbatch, stage, action.chunk)
    sent = Sent(made, stage, target[0]) if leaves and target is not None else None
    needs = place + (-1 if made == "F" else 1)
    return SkeletonPart(ActionWork(action.kind, stage, action.chunk, arrives), made, place, needs, sent)


class Skeleton:
    """The ops of a schedule's actions and sends.  ``overlap``: sends go on lanes of their own."""

    def __init__(self, schedule: Schedule, *, overlap: bool) -> None:
        self.works: list[ActionWork | Sent] = []
        """All that ops can be."""
        self._number: dict[ActionWork | Sent, int] = {}
        self._of_op: list[int] = []
        self._columns = Program()
        self._sends: list[int] = []
        self._schedule, self._overlap = schedule, overlap
        self._parts: dict[tuple[int, str, int], SkeletonPart] = {}
        made: dict[Name, int] = {}  # what is ready where it is needed: its op
        waiting: list[tuple[int, Name]] = []
        self._main: list[int] = []
        for stage, row in enumerate(schedule.rows):
            lanes: dict[str, int] = {}
            self._main.append(self._lane(lanes, stage, MAIN))
            for action in row:
                self._act(action, stage, lanes, made, waiting)
        for op, name in waiting:
            self._columns.after[op] = (made[name],)

    def program(
        self, costs: Mapping[ActionWork | Sent, Costed], last: Sequence[Sequence[Last]], ranks: Sequence[int]
    ) -> Program:
        """The step: everything takes what ``costs`` says; ``last[stage]`` comes behind the stage's last action.

        ``ranks`` stand for the stages.
        """
        columns = self._columns
        costed = [costs[work] for work in self.works]
        seconds = [each.seconds for each in costed]
        meetings = [each.meeting for each in costed]
        program = Program(
            seconds=[seconds[number] for number in self._of_op],
            meeting=list(columns.meeting),
            position=list(columns.position),
            after=list(columns.after),
            lane=list(columns.lane),
            rows=list(self._of_op),
            step=list(columns.step),
            chunk=list(columns.chunk),
            microbatch=list(columns.microbatch),
            lanes=[list(ops) for ops in columns.lanes],
            lane_rank=[ranks[stage] for stage in columns.lane_stage],
            lane_name=list(columns.lane_name),
            lane_stage=list(columns.lane_stage),
            meetings=[meetings[self._of_op[op]] for op in self._sends],  # type: ignore[misc]  # sends have one
            row_sets=[each.rows for each in costed],
        )
        known: dict[object, int] = {}
        for stage, ops in enumerate(last):
            for each in ops:
                _append(program, self._main[stage], each, known)
        return program

    def _act(
        self,
        action: Action,
        stage: int,
        lanes: dict[str, int],
        made: dict[Name, int],
        waiting: list[tuple[int, Name]],
    ) -> None:
        """An action, and the send of what it makes."""
        part = self._parts.get((stage, action.kind, action.chunk))
        if part is None:
            part = self._parts[stage, action.kind, action.chunk] = part_of(self._schedule, stage, action)
        op = self._op(self._main[stage], part.work, action)
        if part.work.arrives:
            waiting.append((op, (part.made, action.microbatch, part.needs)))
        if part.sent is not None:
            lane = self._lane(lanes, stage, f"send {part.made}") if self._overlap else self._main[stage]
            send = self._op(lane, part.sent, action)
            self._columns.after[send] = (op,)
            self._columns.meeting[send] = len(self._sends)
            self._sends.append(send)
            made[part.made, action.microbatch, part.place] = send

    def _lane(self, lanes: dict[str, int], stage: int, name: str) -> int:
        if name not in lanes:
            lanes[name] = self._columns.add_lane(stage, stage, name)
        return lanes[name]

    def _op(self, lane: int, work: ActionWork | Sent, action: Action) -> int:
        number = self._number.get(work)
        if number is None:
            number = self._number[work] = len(self.works)
            self.works.append(work)
        self._of_op.append(number)
        return self._columns.add_op(lane, number, chunk=action.chunk, microbatch=action.microbatch)


def _append(program: Program, lane: int, each: Last, known: dict[object, int]) -> None:
    """An op at the end of a lane; those of one name meet."""
    number = -1
    if each.costed.meeting is not None:
        number = known.setdefault(each.name, len(program.meetings))
        if number == len(program.meetings):
            program.meetings.append(each.costed.meeting)
    program.row_sets.append(each.costed.rows)
    program.add_op(lane, len(program.row_sets) - 1, seconds=each.costed.seconds, meeting=number)
