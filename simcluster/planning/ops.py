"""Output of planning: the ops of each stage's ranks, in order, on lanes such as compute and communication.

All ranks of a stage run the same ops; only their groups differ. A *segment* is a sequence of ops that follow each other
without waiting for anything outside; an *item* is one run of a segment. A *lane* is an in-order queue of a rank: "main"
(the GPU's compute stream with the collectives that block it) and one for each kind of background traffic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

MAIN = "main"
EXPERTS = "experts"
"""The name of the ops that multiply tokens with the weights of routed experts."""
Direction = Literal["d2h", "h2d", "storage", "peers"]
"""Which way a copy goes: from device to host, back, or from the host on to storage or to another machine's memory."""

Group = str | tuple[Literal["send"], int, int] | tuple[Literal["copy"], Direction]
"""An axis; "send" with the stage of the sender and the receiver's; "copy", to or from the host's memory."""


class Work:
    """Work of an op: its group, bytes, duration and slowdown, with defaults for work of one rank alone.

    A new kind (``works``) is a frozen class that overrides what differs. A field with the name of a default is written
    ``size: float = field()``: else the value here would be its default.
    """

    __slots__ = ()
    kind: str = ""  # of collective, "send" or "copy"
    axis: str = ""  # on which it is done together, "" for none
    size: float = 0.0  # bytes
    load: float = 1.0  # how many times they travel
    bound: float = math.inf  # B/s that it never exceeds
    sensitivity: float | None = None  # what a computation feels of communication beside it; None: it is none
    attention: float = 0.0  # of a computation's seconds
    joins: bool = False  # does it only take part in what another's op does?  Then it leaves no span

    @property
    def seconds(self) -> float:
        """Known duration (s) at full speed; -1 if links or other ranks decide it."""
        return -1.0

    @property
    def traffic_kind(self) -> str:
        """Kind of traffic that the work puts on links; "" for none."""
        return self.kind if self.seconds < 0 else ""

    def group(self, stage: int) -> Group | None:
        """Return the group of ranks that does the work together; None if a rank of the stage does it alone."""
        return self.axis or None

    def parties(self, members: int) -> int:
        """Return how many of a group's ops must have arrived before the work begins."""
        return members

    def slows_compute(self, lane: str) -> bool:
        """Return whether the work, on this lane, slows down concurrent computation."""
        return self.axis != "" and lane != MAIN

    def slowed(self, factor: float, added: float = 0.0, load: float = 1.0) -> Work:
        """Return the work under faults: ``factor`` times as long, plus ``added`` s, with ``load`` times attention."""
        return self

    def shifted(self, stages: int) -> Work:
        """Return the work with stage numbers increased by ``stages``."""
        return self

    def free(self) -> Work:
        """Return the work (of a kind with ``seconds``) without duration and traffic, so that only waiting remains."""
        return replace(self.slowed(0.0), seconds=0.0)  # type: ignore[type-var]


class MemoryChange(NamedTuple):
    """Memory (bytes) that an op allocates or frees on its rank: ``start`` as it starts, ``end`` as it ends.

    Positive allocates, negative frees. ``pool`` is what the memory is for: "activations", "parameters" (gathered for
    use), "gradients" (unsharded, come and go) or "other" (working sets, logits, buffers that come and go).
    """

    pool: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Op:
    """Op of a segment: one kernel sequence, collective, send, copy or host task on one lane.

    ``stream``, ``kind``, ``name`` and ``layer`` go to the timeline as they are (layer -1: none). The op follows the one
    before it on its lane; ``after`` lists further ops of the segment (by index) that it waits for. The ``routed`` part
    of its ``memory`` scales with the rows that visit the rank's experts, of which planning gives each rank an even
    share.
    """

    work: Work
    stream: str
    kind: str
    name: str
    layer: int = -1
    lane: str = MAIN
    after: tuple[int, ...] = ()
    memory: tuple[MemoryChange, ...] = ()
    routed: tuple[MemoryChange, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Segment:
    """Ops in order that wait for nothing outside the segment once the first has begun.

    An op on another lane than the first op's waits for an earlier op, and is joined before the last one (checked here):
    a segment begins with its first op and is over with its last.
    """

    ops: tuple[Op, ...]

    def __post_init__(self) -> None:
        lane = self.ops[0].lane
        joined = {index for op in self.ops for index in op.after}
        for index, op in enumerate(self.ops):
            assert all(earlier < index for earlier in op.after), op
            assert op.lane == lane or (op.after and index in joined), op
        assert self.ops[-1].lane == lane, self.ops[-1]

    def with_works(self, change: Callable[[Op], Work]) -> Segment:
        """Return the segment with the work of each op replaced by ``change(op)``."""
        ops = zip(self.ops, map(change, self.ops), strict=True)
        return Segment(tuple([op if op.work is work else replace(op, work=work) for op, work in ops]))


class Need(NamedTuple):
    """Dependency of an item on the end ``key`` of another, on the matching rank of ``stage``.

    The rank has the same coordinates on the other axes. From another stage only a Transfer to this one can be awaited:
    folding knows ranks that depend on each other by what they send and by their groups.
    """

    stage: int
    key: Hashable


class Item(NamedTuple):
    """One run of a segment on a lane, with what it waits for (``needs``).

    ``key`` names its end for others, and so does all in ``also``.
    """

    segment: Segment
    key: Hashable
    needs: tuple[Need, ...] = ()
    step: int = 0
    chunk: int = -1
    microbatch: int = -1
    also: tuple[Hashable, ...] = ()


@dataclass(frozen=True, slots=True)
class StageProgram:
    """Items that every rank of a stage runs, lane by lane, each lane in order."""

    stage: int
    lanes: dict[str, list[Item]]

    def with_items(self, change: Callable[[Item], Item]) -> StageProgram:
        """Return the stage program with every item replaced by ``change(item)``."""
        return StageProgram(self.stage, {lane: list(map(change, items)) for lane, items in self.lanes.items()})
