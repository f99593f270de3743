"""What planning produces: for each stage, the ops of its ranks, in order, lane by lane.  Imports nothing of simcluster.

All ranks of a stage run the same ops; only their groups differ.  A *segment* is a stretch of ops that follow each other
without waiting for anything outside; an *item* is one playing of a segment.  A *lane* is an in-order queue of a rank:
"main" (the GPU's compute stream with the collectives that block it) and one for each kind of background traffic.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal, NamedTuple

MAIN = "main"
EXPERTS = "experts"
"""The name of the ops that multiply tokens with the weights of routed experts."""
Direction = Literal["d2h", "h2d"]
"""Which way a copy goes: from device to host, or back."""


class Compute(NamedTuple):
    """Kernels on one GPU at full speed, in seconds; ``sensitivity`` is how much they feel of communication beside them.

    1 is in full: they take (1 + pressure) x seconds beside a communication of that pressure (interference.py).
    ``attention`` is the part of the seconds that grows with the squares of the lengths of documents (faults/data.py).
    """

    seconds: float
    sensitivity: float = 1.0
    attention: float = 0.0


class Collective(NamedTuple):
    """``kind`` of ``size`` bytes (the full buffer) over the rank's group on ``axis``.

    ``load`` times as many travel: more than the library, which chooses by the size, was told of.
    """

    kind: str
    axis: str
    size: float
    load: float = 1.0


class Timed(NamedTuple):
    """A collective over the rank's group on ``axis`` of known duration: it waits for all, then takes ``seconds``."""

    axis: str
    seconds: float


class Transfer(NamedTuple):
    """``size`` bytes to the rank of ``to_stage`` with the same place on the other axes.

    ``seconds``, if not -1, is its known duration: then no link is used.  ``rendezvous``: it begins when the receiver
    has posted its Receive, too; otherwise the receiver is always ready.
    """

    to_stage: int
    size: float
    seconds: float = -1.0
    rendezvous: bool = False


class Receive(NamedTuple):
    """The receiver's side of a Transfer at a rendezvous, from the rank of ``from_stage`` with the same place.

    The key of its item is ("receive", the key of the sender's item); both items have no other op.  It leaves no span of
    its own: what the receiver sees of a transfer belongs to the op that waits for it.
    """

    from_stage: int


class Copy(NamedTuple):
    """``size`` bytes between the GPU and its host's memory, over the rank's own way there (``Cluster.host_way``).

    ``direction`` is "d2h" to the host or "h2d" from it.  Done by a copy engine: no SM is taken, computation goes on.
    ``seconds``, if not -1, is its known duration: then no link is used.
    """

    direction: Direction
    size: float
    seconds: float = -1.0


class Host(NamedTuple):
    """Work of the host's processors for the rank, in seconds; a slow GPU does not slow it down."""

    seconds: float


Work = Compute | Collective | Timed | Transfer | Receive | Copy | Host


class Change(NamedTuple):
    """Memory that comes or goes on the rank with an op, in bytes: ``start`` as the op starts, ``end`` as it ends.

    Positive allocates, negative frees.  ``pool`` is what the memory is for: "activations", "parameters" (gathered for
    use), "gradients" (unsharded, come and go) or "other" (working sets, logits, buffers that come and go).
    """

    pool: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Op:
    """One op of a segment.

    ``stream``, ``kind``, ``name`` and ``layer`` go to the timeline as they are (layer -1: none).  The op follows the
    one before it on its lane; ``after`` lists further ops of the segment (by index) that it waits for.
    Of its ``memory`` the ``routed`` part goes with the rows that visit the rank's experts, of which planning gives each
    rank an even share.
    """

    work: Work
    stream: str
    kind: str
    name: str
    layer: int = -1
    lane: str = MAIN
    after: tuple[int, ...] = ()
    memory: tuple[Change, ...] = ()
    routed: tuple[Change, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Segment:
    """Ops in program order.

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


class Need(NamedTuple):
    """What must have happened: ``key`` on the rank of ``stage`` with the same place on the other axes.

    From another stage only a Transfer to this one can be awaited: folding knows ranks that depend on each other by what
    they send and by their groups.
    """

    stage: int
    key: Hashable


class Item(NamedTuple):
    """A segment played once.

    ``key`` names its end for others, and so does all in ``also``; ``needs`` is what it waits for besides its lane.
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
    """The items of every rank of a stage, lane by lane, each lane in order."""

    stage: int
    lanes: dict[str, list[Item]]
