"""What crosses the boundary between stages: who makes what an action needs, and how it is sent.

Pure; imports ops, schedules and the step's plan.
"""

from __future__ import annotations

from simcluster.lanes import Lanes
from simcluster.ops import MAIN, Item, Need, Op, Segment, Transfer
from simcluster.schedules import Action, Hop
from simcluster.step_plan import Job

Key = tuple[object, ...]


class Boundaries:
    """The boundaries of one stage."""

    def __init__(self, job: Job, lanes: Lanes) -> None:
        self._job = job
        self._lanes = lanes
        self._stage = lanes.stage

    def key(self, action: Action, step: int) -> Key:
        """What the action makes: I makes for the stage before what B makes."""
        made = "B" if action.kind == "I" else action.kind
        virtual = self._job.schedule.virtual_stage(action.microbatch, self._stage, action.chunk)
        return made, step, action.microbatch, virtual

    def needs(self, action: Action, step: int) -> tuple[Need, ...]:
        """What an action waits for: its neighbour's tensor, sent over or, on the same stage, just made."""
        source, _ = self._neighbours(action)
        if source is None or action.kind == "W":
            return ()
        made, *_, virtual = self.key(action, step)
        assert isinstance(virtual, int)
        key = (step, action.microbatch, virtual + (-1 if made == "F" else 1))
        return (Need(source[0], (made if source[0] == self._stage else f"send {made}", *key)),)

    def arrives_split(self, action: Action) -> bool:
        """Does its input come from another stage, split over tp, to be gathered first?"""
        source, _ = self._neighbours(action)
        return (
            self._job.gather_boundary and action.kind != "W" and source is not None and source[0] != self._stage
        )  # fmt: skip

    def send(self, action: Action, step: int) -> None:
        """What an action made goes to its neighbour, if that is another stage."""
        _, hop = self._neighbours(action)
        if hop is None or hop[0] == self._stage or action.kind == "W":
            return
        target, key = hop[0], self.key(action, step)
        kind = key[0]
        lane = f"send {kind}" if self._job.overlap_sends else MAIN
        name = "activation" if kind == "F" else "gradient"
        op = Op(Transfer(target, self._job.send_bytes), "pp", "send", name, lane=lane)
        segment = self._lanes.once((lane, kind, target), lambda: Segment((op,)))
        sent = (f"send {kind}", *key[1:])
        self._lanes.put(lane, Item(segment, sent, (Need(self._stage, key),), step, action.chunk, action.microbatch))

    def _neighbours(self, action: Action) -> tuple[Hop | None, Hop | None]:
        """Where what the action needs is made, and where its result goes."""
        before = self._job.schedule.previous_hop(action.microbatch, self._stage, action.chunk)
        after = self._job.schedule.next_hop(action.microbatch, self._stage, action.chunk)
        return (before, after) if action.kind == "F" else (after, before)
