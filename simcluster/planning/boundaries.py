"""Sends and receives between pipeline stages, asynchronous or with sender and receiver waiting for each other.

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
from typing import NamedTuple, Protocol

from simcluster.planning.ops import MAIN, Item, Need, Op, Segment
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.works import Receive, Transfer
from simcluster.schedules import Action, Hop, Schedule

Key = tuple[str, int, int, int]
"""The letter of what is made, the step, the microbatch, and the slice of the model."""


class _DataPath(NamedTuple):
    """Where the input of a kind of action comes from and its output goes, for one chunk and route.

    ``made`` is the kind of output, ``virtual`` the model slice; source and target of W are None.
    """

    made: str
    virtual: int
    source: Hop | None
    target: Hop | None


class BoundaryRules(Protocol):
    """Options of a job that decide how tensors cross stage boundaries."""

    @property
    def schedule(self) -> Schedule: ...
    @property
    def rendezvous(self) -> bool: ...
    @property
    def overlap_sends(self) -> bool: ...
    @property
    def gather_boundary(self) -> bool: ...
    @property
    def send_bytes(self) -> float: ...


class BoundaryBuilder:
    """Builder of one stage's sends to and receives from its neighbouring stages."""

    def __init__(self, job: BoundaryRules, lanes: ProgramBuilder) -> None:
        self._job = job
        self._lanes = lanes
        self._stage = lanes.stage
        self._transfers: dict[int, Transfer] = {}  # by the stage that it goes to
        self._made: list[Action] = []  # what waits for the next rendezvous
        self._ways: dict[tuple[str, int, int], _DataPath] = {}
        # the latest action and its path: one action is looked up several times in a row
        self._asked: tuple[Action | None, _DataPath] = None, _DataPath("", 0, None, None)

    def key(self, action: Action, step: int) -> Key:
        """Return the key of an action's output; I and B have equal keys, since both make the input gradient."""
        way = self._data_path_of_action(action)
        return way.made, step, action.microbatch, way.virtual

    def needs(self, action: Action, step: int) -> tuple[Need, ...]:
        """Return what an action waits for: a send from the neighbouring stage, or an output on its own stage."""
        made, virtual, source, _ = self._data_path_of_action(action)
        if source is None:
            return ()
        what = made if source[0] == self._stage else f"send {made}"
        return (Need(source[0], (what, step, action.microbatch, virtual + (-1 if made == "F" else 1))),)

    def arrives_split(self, action: Action) -> bool:
        """Return whether an action's input arrives split over tp and must be gathered first."""
        return self._job.gather_boundary and self._comes_from(action) is not None

    def send(self, action: Action, step: int) -> None:
        """Add the send of an action's output to the neighbouring stage, if there is one."""
        if self._job.rendezvous:
            self._made.append(action)
        else:
            key = self.key(action, step)
            self._add_send(action, key, (Need(self._stage, key),))

    def rendezvous(self, row: Sequence[Action], halves: Sequence[int]) -> dict[int, int]:
        """Return the positions in a row that a rendezvous precedes, each with the number of actions until the next.

        Empty if sends do not wait. ``halves`` are the positions at which fused pairs begin.
        """
        found: dict[int, int] = {}
        position = 0
        while self._job.rendezvous and position < len(row):
            found[position] = 1 + (position in halves or self._is_exchanged(row, position))
            position += found[position]
        return found

    def _is_exchanged(self, row: Sequence[Action], position: int) -> bool:
        """Return whether a forward and another microbatch's backward are exchanged at one rendezvous."""
        one, *others = row[position : position + 3]
        if self._job.schedule.num_chunks == 1 or one.kind != "F" or not others or others[0].kind not in ("B", "I"):
            return False
        before = row[position - 1].kind in ("B", "I") if position else False
        behind = len(others) > 1 and others[1].kind == "F"
        own = one.microbatch == others[0].microbatch and self._comes_from(others[0]) is not None
        return (before or behind) and not own

    def add_rendezvous(self, coming: Sequence[Action], step: int) -> None:
        """Add the rendezvous before the ``coming`` actions: one, a fused pair, or none at the end of a row."""
        reached = self._lanes.last_end()
        to = {hop[0] for action in self._made if (hop := self._sent_to(action)) is not None}
        whence = {hop[0] for action in coming if (hop := self._comes_from(action)) is not None}
        sent: tuple[Need, ...] = ()
        for action in self._made:
            sent += self._add_send(action, self.key(action, step), reached)
        together = self._job.schedule.num_chunks > 1 or to == whence
        for action in coming:
            self._add_receive(action, step, reached if together else reached + sent)
        self._lanes.delay_next_item(sent)
        self._made = []

    def _add_send(self, action: Action, key: Key, needs: tuple[Need, ...]) -> tuple[Need, ...]:
        hop = self._sent_to(action)
        if hop is None:
            return ()
        target, meets = hop[0], self._job.rendezvous
        kind, step, *_ = key
        lane = f"send {kind}" if self._job.overlap_sends or meets else MAIN
        work = self._transfer_to_stage(target, key)

        def make() -> Segment:
            return Segment((Op(work, "pp", "send", _tensor_name(kind), lane=lane),))

        segment = self._lanes.segment((lane, kind, work), make)
        sent = (f"send {kind}", *key[1:])
        self._lanes.append_item(lane, Item(segment, sent, needs, step, action.chunk, action.microbatch))
        return (Need(self._stage, sent),)

    def _transfer_to_stage(self, target: int, key: Key) -> Transfer:
        known = self._transfers.get(target)
        if known is None:
            known = Transfer(target, self._job.send_bytes, rendezvous=self._job.rendezvous)
            self._transfers[target] = known
        return known

    def _add_receive(self, action: Action, step: int, needs: tuple[Need, ...]) -> None:
        hop = self._comes_from(action)
        if hop is None:
            return
        kind = self.key(action, step)[0]
        lane = f"recv {kind}"
        op = Op(Receive(hop[0]), "pp", "recv", _tensor_name(kind), lane=lane)
        segment = self._lanes.segment((lane, kind, hop[0]), lambda: Segment((op,)))
        (need,) = self.needs(action, step)
        self._lanes.append_item(
            lane, Item(segment, ("receive", need.key), needs, step, action.chunk, action.microbatch)
        )

    def _comes_from(self, action: Action) -> Hop | None:
        hop = self._data_path_of_action(action).source
        return None if hop is None or hop[0] == self._stage else hop

    def _sent_to(self, action: Action) -> Hop | None:
        hop = self._data_path_of_action(action).target
        return None if hop is None or hop[0] == self._stage else hop

    def _data_path_of_action(self, action: Action) -> _DataPath:
        if self._asked[0] is action:
            return self._asked[1]
        schedule, kind, chunk = self._job.schedule, action.kind, action.chunk
        name = kind, chunk, schedule.route_of[action.microbatch]
        known = self._ways.get(name)
        if known is None:
            where = action.microbatch, self._stage, chunk
            before, after = schedule.previous_hop(*where), schedule.next_hop(*where)
            ends = (None, None) if kind == "W" else (before, after) if kind == "F" else (after, before)
            known = self._ways[name] = _DataPath("B" if kind == "I" else kind, schedule.virtual_stage(*where), *ends)
        self._asked = action, known
        return known


def _tensor_name(kind: object) -> str:
    return "activation" if kind == "F" else "gradient"
