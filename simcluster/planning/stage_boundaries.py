"""Sends and receives between pipeline stages: asynchronous, or blocking until both sides are ready.

Asynchronously: a send waits for what it sends, the receiver is always ready, and neither's computation waits for more
than it needs. Or at a rendezvous, as Megatron-LM without overlapped point-to-point communication
(``p2p_communication.py``): between two actions a stage posts the sends of what the first made and the receives of what
the second needs, a transfer begins when both its sides are posted, and the stage resumes when all its transfers end.
Sends and receives are posted together where they are with the same stage (``send_forward_recv_backward``); else the
receives are posted when the sends are over. Where stages have several chunks all are posted together
(``send_forward_recv_forward``), and a forward and a backward of those that take turns are one action
(``send_forward_backward_recv_forward_backward``).

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simcluster.planning.job import Job
from simcluster.planning.ops import MAIN, Dependency, Op
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.work_kinds import StageReceive, StageSend
from simcluster.schedules import Action, Hop, Schedule

Key = tuple[str, int, int, int]
"""Key of an action's output: kind of the output (F, B or W), step, microbatch, model slice."""


class _ActionDataPath(NamedTuple):
    """Stages and chunks that an action receives its input from and sends its output to.

    ``output_kind`` is the kind of output, ``slice_number`` the model slice; source and target of W are None.
    """

    output_kind: str
    slice_number: int
    source: Hop | None
    target: Hop | None


@dataclass(frozen=True, slots=True)
class BlockingSendOptions:
    """Options of a job with blocking sends, in which sender and receiver wait for each other."""

    schedule: Schedule
    rendezvous: bool = True
    overlap_sends: bool = False
    gather_boundary: bool = False

    def sent_bytes(self, boundary: int) -> float:
        """Return 0: users give the times of sends."""
        return 0.0


class SendReceiveBuilder:
    """Builder of the send and receive ops between one pipeline stage and its neighbours."""

    def __init__(self, job: Job | BlockingSendOptions, lanes: ProgramBuilder) -> None:
        self._job = job
        self._lanes = lanes
        self._stage = lanes.stage
        self._transfers: dict[tuple[int, float], StageSend] = {}  # by the stage that it goes to, and its bytes
        self._made: list[Action] = []  # what waits for the next rendezvous
        self._ways: dict[tuple[str, int, int], _ActionDataPath] = {}
        # the latest action and its path: one action is looked up several times in a row
        self._asked: tuple[Action | None, _ActionDataPath] = None, _ActionDataPath("", 0, None, None)

    def output_key(self, action: Action, step: int) -> Key:
        """Return the key of an action's output; actions B and I have the same output, the input gradient."""
        way = self._data_path_of_action(action)
        return way.output_kind, step, action.microbatch, way.slice_number

    def input_dependencies(self, action: Action, step: int) -> tuple[Dependency, ...]:
        """Return what an action's input depends on: a send of a neighbouring stage, or an output of this stage."""
        made, virtual, source, _ = self._data_path_of_action(action)
        if source is None:
            return ()
        what = made if source[0] == self._stage else f"send {made}"
        return (Dependency(source[0], (what, step, action.microbatch, virtual + (-1 if made == "F" else 1))),)

    def input_arrives_split(self, action: Action) -> bool:
        """Return whether an action's input arrives split over tp ranks, so that an all-gather must precede it."""
        return self._job.gather_boundary and self._source_hop(action) is not None

    def add_output_send(self, action: Action, step: int) -> None:
        """Add the send of an action's output to the neighbouring stage; add nothing if there is no such stage."""
        if self._job.rendezvous:
            self._made.append(action)
        else:
            key = self.output_key(action, step)
            self._add_send(action, key, (Dependency(self._stage, key),))

    def find_rendezvous(self, row: Sequence[Action], halves: Sequence[int]) -> dict[int, int]:
        """Return the positions in a stage's actions before which stages exchange tensors, with the action counts.

        Empty if sends do not wait. ``halves`` are the positions at which fused pairs begin.
        """
        found: dict[int, int] = {}
        position = 0
        while self._job.rendezvous and position < len(row):
            found[position] = 1 + (position in halves or self._shares_rendezvous(row, position))
            position += found[position]
        return found

    def _shares_rendezvous(self, row: Sequence[Action], position: int) -> bool:
        """Return whether a forward and the backward right after it exchange their tensors in one rendezvous."""
        one, *others = row[position : position + 3]
        if self._job.schedule.num_chunks == 1 or one.kind != "F" or not others or others[0].kind not in ("B", "I"):
            return False
        before = row[position - 1].kind in ("B", "I") if position else False
        behind = len(others) > 1 and others[1].kind == "F"
        own = one.microbatch == others[0].microbatch and self._source_hop(others[0]) is not None
        return (before or behind) and not own

    def add_rendezvous(self, upcoming: Sequence[Action], step: int) -> None:
        """Add the blocking sends and receives before the next actions of a stage."""
        reached = self._lanes.main_lane_end()
        to = {hop[0] for action in self._made if (hop := self._target_hop(action)) is not None}
        whence = {hop[0] for action in upcoming if (hop := self._source_hop(action)) is not None}
        sent: tuple[Dependency, ...] = ()
        for action in self._made:
            sent += self._add_send(action, self.output_key(action, step), reached)
        together = self._job.schedule.num_chunks > 1 or to == whence
        for action in upcoming:
            self._add_receive(action, step, reached if together else reached + sent)
        self._lanes.delay_next_item(sent)
        self._made = []

    def _add_send(self, action: Action, key: Key, needs: tuple[Dependency, ...]) -> tuple[Dependency, ...]:
        hop = self._target_hop(action)
        if hop is None:
            return ()
        target, meets = hop[0], self._job.rendezvous
        kind, step, *_ = key
        lane = f"send {kind}" if self._job.overlap_sends or meets else MAIN
        send = Op(self._send_work(target, key), "pp", "send", tensor_name(kind), lane=lane)
        sent = (f"send {kind}", *key[1:])
        self._lanes.append_op(send, sent, needs, step, action.chunk, action.microbatch)
        return (Dependency(self._stage, sent),)

    def _send_work(self, target: int, key: Key) -> StageSend:
        kind, *_, number = key
        size = self._job.sent_bytes(number - (kind != "F"))
        known = self._transfers.get((target, size))
        if known is None:
            known = self._transfers[target, size] = StageSend(target, size, rendezvous=self._job.rendezvous)
        return known

    def _add_receive(self, action: Action, step: int, needs: tuple[Dependency, ...]) -> None:
        hop = self._source_hop(action)
        if hop is None:
            return
        kind = self.output_key(action, step)[0]
        receive = Op(StageReceive(hop[0]), "pp", "recv", tensor_name(kind), lane=f"recv {kind}")
        (need,) = self.input_dependencies(action, step)
        self._lanes.append_op(receive, ("receive", need.key), needs, step, action.chunk, action.microbatch)

    def _source_hop(self, action: Action) -> Hop | None:
        hop = self._data_path_of_action(action).source
        return None if hop is None or hop[0] == self._stage else hop

    def _target_hop(self, action: Action) -> Hop | None:
        hop = self._data_path_of_action(action).target
        return None if hop is None or hop[0] == self._stage else hop

    def _data_path_of_action(self, action: Action) -> _ActionDataPath:
        if self._asked[0] is action:
            return self._asked[1]
        schedule, kind, chunk = self._job.schedule, action.kind, action.chunk
        key = kind, chunk, schedule.route_of[action.microbatch]
        way = self._ways.get(key)
        if way is None:
            number = schedule.virtual_stage(action.microbatch, self._stage, chunk)
            ends = action_hops(schedule, self._stage, action)
            way = self._ways[key] = _ActionDataPath("B" if kind == "I" else kind, number, *ends)
        self._asked = action, way
        return way


def action_hops(schedule: Schedule, stage: int, action: Action) -> tuple[Hop | None, Hop | None]:
    """Return the hops from which an action gets its input and to which its output goes; W has neither."""
    if action.kind == "W":
        return None, None
    before = schedule.previous_hop(action.microbatch, stage, action.chunk)
    after = schedule.next_hop(action.microbatch, stage, action.chunk)
    return (before, after) if action.kind == "F" else (after, before)


def tensor_name(kind: str) -> str:
    """Return the name of the tensor that a pass of this kind sends."""
    return "activation" if kind == "F" else "gradient"
