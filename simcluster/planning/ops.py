"""Output of planning: ops of each stage's ranks, in order, on lanes (serial queues such as "main" or "dp").

All ranks of a stage run the same ops; only their groups differ. A *segment* is a sequence of ops that follow each other
without waiting for anything outside; an *item* is one run of a segment. A *lane* is an in-order queue of a rank: "main"
(the GPU's compute stream with the collectives that block it) and one for each kind of background traffic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

MAIN = "main"
EXPERTS = "experts"
"""Name of the ops that multiply tokens with the weights of routed experts."""
Direction = Literal["d2h", "h2d", "storage", "peers"]
"""Direction of a copy: from device to host, back, or from the host to storage or to another node's memory."""

Group = str | tuple[Literal["send"], int, int] | tuple[Literal["copy"], Direction]
"""Group of an op: an axis; "send" with the stages of sender and receiver; or "copy", to or from host memory."""


class OpWork:
    """Base class of the work of an op (compute, collective, copy, ...); the defaults are for work of a single rank.

    A new kind (``work_kinds``) is a frozen class that overrides what differs. A field with the name of a default is
    written ``size: float = field()``: else the value here would be its default.
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
        """Duration (s) at full speed if known in advance; -1 if links or other ranks decide it."""
        return -1.0

    @property
    def traffic_kind(self) -> str:
        """Kind of traffic that the work sends over links; "" if there is no traffic."""
        return self.kind if self.seconds < 0 else ""

    def group(self, stage: int) -> Group | None:
        """Return the group of ranks that share the work; None for work of a single rank."""
        return self.axis or None

    def arrivals_needed(self, members: int) -> int:
        """Return how many ranks of a group must have arrived before the work begins."""
        return members

    def slows_compute(self, lane: str) -> bool:
        """Return whether work on this lane slows down concurrent compute."""
        return self.axis != "" and lane != MAIN

    def with_slowdown(self, factor: float, added: float = 0.0, load: float = 1.0) -> OpWork:
        """Return the work slowed down by faults: time x ``factor``, plus ``added`` seconds; attention x ``load``."""
        return self

    def with_stage_offset(self, stages: int) -> OpWork:
        """Return the work with all its stage numbers increased by ``stages``."""
        return self

    def without_duration(self) -> OpWork:
        """Return the work with neither duration nor traffic: the rank still waits for the other ranks."""
        return replace(self.with_slowdown(0.0), seconds=0.0)  # type: ignore[type-var]


@dataclass(frozen=True, slots=True)
class HostWork(OpWork):
    """Work of the host's CPUs for one rank, in seconds; unaffected by a slow GPU."""

    seconds: float = field()


class MemoryChange(NamedTuple):
    """Memory (bytes) that an op allocates (or frees, if negative) on its rank at its start and at its end.

    Positive allocates, negative frees. ``pool`` is what the memory is for: "activations", "parameters" (gathered for
    use), "gradients" (unsharded, come and go) or "other" (working sets, logits, buffers that come and go).
    """

    pool: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Op:
    """Operation on one lane of a rank: a sequence of kernels, a collective, a send, a copy or a host task.

    ``stream``, ``kind``, ``name`` and ``layer`` go to the timeline as they are (layer -1: none). The op follows the one
    before it on its lane; ``after`` lists further ops of the segment (by index) that it waits for. The ``routed`` part
    of its ``memory`` scales with the rows that visit the rank's experts, of which planning gives each rank an even
    share.
    """

    work: OpWork
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
    """Sequence of ops in which only the first op waits for ops outside the segment.

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

    def with_replaced_works(self, change: Callable[[Op], OpWork]) -> Segment:
        """Return the segment after replacing the work of each op by ``change(op)``."""
        ops = zip(self.ops, map(change, self.ops), strict=True)
        return Segment(tuple([op if op.work is work else replace(op, work=work) for op, work in ops]))

    def with_memory(self, memory: tuple[MemoryChange, ...]) -> Segment:
        """Return the segment with memory that is allocated at its start and freed at its end."""
        ops = list(self.ops)
        comes = tuple(MemoryChange(pool, start, 0.0) for pool, start, _ in memory if start)
        goes = tuple(MemoryChange(pool, 0.0, end) for pool, _, end in memory if end)
        ops[0] = replace(ops[0], memory=ops[0].memory + comes)
        ops[-1] = replace(ops[-1], memory=ops[-1].memory + goes)
        return Segment(tuple(ops))


class Dependency(NamedTuple):
    """Dependency of a work item on the end of another item, on the rank's counterpart in stage ``stage``.

    The rank has the same coordinates on the other axes. From another stage only a Transfer to this one can be awaited:
    folding knows ranks that depend on each other by what they send and by their groups.
    """

    stage: int
    key: Hashable


class WorkItem(NamedTuple):
    """Work item: one run of a segment on a lane, which begins when all of the item's dependencies have ended.

    ``key`` names its end for others, and so does all in ``also``.
    """

    segment: Segment
    key: Hashable
    needs: tuple[Dependency, ...] = ()
    step: int = 0
    chunk: int = -1
    microbatch: int = -1
    also: tuple[Hashable, ...] = ()


@dataclass(frozen=True, slots=True)
class StageProgram:
    """Work items that every rank of a stage runs, as one ordered list per lane."""

    stage: int
    lanes: dict[str, list[WorkItem]]

    def with_replaced_items(self, change: Callable[[WorkItem], WorkItem]) -> StageProgram:
        """Return the stage program after replacing every work item by ``change(item)``."""
        return StageProgram(self.stage, {lane: list(map(change, items)) for lane, items in self.lanes.items()})
