"""Checkpoint within a step: copies to host memory, the write to storage, and the barrier that stops training.

A *snapshot* stops training until every rank has its part in its host's memory; the write to storage then continues,
overlapped with the next step, on the NICs that gradients use, too. A *blocking* checkpoint stops training until the
write is over. A rank writes its shard, and its part of what it shares with replicas (``SavedParts``). What peers keep
in their memory is written to them as to storage. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from simcluster.planning.ops import MAIN, Direction, Item, Need, Op, Segment, StageProgram
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.works import Copy, FixedCollective, HostWork

CHECKPOINT = "checkpoint"
STORAGE: Direction = "storage"
_PARTS = ("common", "experts")
_NAMES = {"d2h": "snapshot", STORAGE: "write", "peers": "copy"}


@dataclass(frozen=True, slots=True)
class SavedParts:
    """Bytes that the ranks of every stage save in a checkpoint ``after`` a step, and how they are copied.

    ``sizes[stage]`` are bytes of common parameters and of experts, for a rank that saves any; ``saves[rank]`` states
    which of the two it does. The copy to the host takes ``copying`` s (-1: the time on its links), training stops for
    ``stall`` s if that is longer; the write, of the ``written`` part of the bytes, has at most ``bounds[stage]`` B/s
    per rank, or takes ``writing`` s where it uses no link of the job. ``blocking``: training waits for the write, which
    no snapshot precedes. ``to`` is its destination.
    """

    after: int
    blocking: bool
    sizes: tuple[tuple[float, float], ...]
    saves: tuple[tuple[bool, bool], ...]
    bounds: tuple[float, ...]
    written: float = 1.0
    copying: float = -1.0
    stall: float = 0.0
    writing: float = -1.0
    to: Direction = STORAGE

    def add_checkpoint(self, lanes: ProgramBuilder, step: int) -> None:
        """Add the checkpoint's ops of a stage's ranks after this step, if it is the step to save."""
        if step != self.after:
            return
        stage = lanes.stage
        done = lanes.last_end()
        held: list[Need] = []
        if self.stall:
            key = (CHECKPOINT, "stall", step)
            segment = Segment((Op(HostWork(self.stall), "host", CHECKPOINT, "save", lane=CHECKPOINT),))
            lanes.append_item(CHECKPOINT, Item(segment, key, done, step))
            held.append(Need(stage, key))
        if not self.blocking:
            copies = [Copy("d2h", size, self.copying) for size in self.sizes[stage]]
            held += self._add_copies(lanes, "d2h", copies, done, step)
        bound = self.bounds[stage]
        writes = [Copy(self.to, self.written * size, self.writing, bound) for size in self.sizes[stage]]
        written = self._add_copies(lanes, STORAGE, writes, done if self.blocking else tuple(held), step)
        held += written if self.blocking else []
        wait = Op(
            FixedCollective("world", 0.0) if len(self.saves) > 1 else HostWork(0.0), "host", CHECKPOINT, "barrier"
        )
        lanes.append_item(MAIN, Item(Segment((wait,)), (CHECKPOINT, step), tuple(held), step))

    def _add_copies(
        self, lanes: ProgramBuilder, way: Direction, works: Sequence[Copy], needs: tuple[Need, ...], step: int
    ) -> list[Need]:  # fmt: skip
        ops = [
            Op(work, way, CHECKPOINT, f"{_NAMES[work.direction]} {part}", lane=way)
            for part, work in zip(_PARTS, works, strict=True)
            if work.size
        ]
        if not ops:
            return []
        lanes.append_item(way, Item(Segment(tuple(ops)), (CHECKPOINT, way, step), needs, step))
        return [Need(lanes.stage, (CHECKPOINT, way, step))]

    @property
    def uneven(self) -> bool:
        """Whether ranks of a stage save different parts of the checkpoint."""
        return len(set(self.saves)) > 1

    def colour(self, rank: int) -> Hashable:
        """Return a value that is equal for ranks of a stage that save the same parts."""
        return self.saves[rank]

    def program(self, rank: int, program: StageProgram) -> StageProgram:
        """Return a rank's version of its stage's ops, in which parts that it does not save take no time."""
        spared = [part for part, saves in zip(_PARTS, self.saves[rank], strict=True) if not saves]
        if not spared:
            return program
        lanes = dict(program.lanes)
        for way in ("d2h", STORAGE):
            lanes[way] = [self._drop_parts(item, spared) for item in lanes.get(way, ())]
        return StageProgram(program.stage, {lane: items for lane, items in lanes.items() if items})

    def _drop_parts(self, item: Item, parts: Sequence[str]) -> Item:
        if item.segment.ops[0].kind != CHECKPOINT:
            return item

        def spare(op: Op) -> Copy | HostWork:
            assert isinstance(op.work, Copy)
            return HostWork(0.0) if op.name.split()[1] in parts else op.work

        return item._replace(segment=item.segment.with_works(spare))


def transfer_rate(size: float, seconds: float) -> float:
    """Return the rate (B/s) at which ``size`` bytes take ``seconds``; infinite for no time."""
    return size / seconds if seconds > 0 else math.inf
