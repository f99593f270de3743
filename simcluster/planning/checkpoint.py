"""A checkpoint in a step: copies to host memory, the write that follows, and the barrier at which training stands.

A *snapshot* stops training until every rank has its part in its host's memory; the write to storage goes on from there
beside the next step, on the cables of the NICs that gradients travel on, too.  A *blocking* one stops training until
the write is over.  A rank writes its own shard: of what it shares with replicas its own part (``SavedParts``).  What
peers keep in their memory is written to them as to storage.  Pure.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from simcluster.planning.ops import MAIN, Direction, Item, Need, Op, Segment, StageProgram
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.works import Copy, Host, Timed

CHECKPOINT = "checkpoint"
STORAGE: Direction = "storage"
_PARTS = ("common", "experts")
_NAMES = {"d2h": "snapshot", STORAGE: "write", "peers": "copy"}


@dataclass(frozen=True, slots=True)
class SavedParts:
    """What ranks save ``after`` a step: ``sizes[stage]`` bytes of common parameters and of experts, each for a rank
    that saves any; ``saves[rank]`` says which of the two it does.

    The copy to the host takes ``copying`` s (-1: what its links make of it), training stands for ``stall`` if that is
    longer; the write, of the ``written`` part of the bytes, goes at most at ``bounds[stage]`` B/s of a rank, or takes
    ``writing`` s where it uses no link of the job's.  ``blocking``: training waits for the write, which no snapshot
    precedes.  ``to`` is where it goes.
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

    def put(self, lanes: ProgramBuilder, step: int) -> None:
        """The ops of a stage's ranks behind this step, if it is the one."""
        if step != self.after:
            return
        stage = lanes.stage
        done = lanes.reached()
        held: list[Need] = []
        if self.stall:
            key = (CHECKPOINT, "stall", step)
            segment = Segment((Op(Host(self.stall), "host", CHECKPOINT, "save", lane=CHECKPOINT),))
            lanes.put(CHECKPOINT, Item(segment, key, done, step))
            held.append(Need(stage, key))
        if not self.blocking:
            copies = [Copy("d2h", size, self.copying) for size in self.sizes[stage]]
            held += self._copy(lanes, "d2h", copies, done, step)
        bound = self.bounds[stage]
        writes = [Copy(self.to, self.written * size, self.writing, bound) for size in self.sizes[stage]]
        written = self._copy(lanes, STORAGE, writes, done if self.blocking else tuple(held), step)
        held += written if self.blocking else []
        wait = Op(Timed("world", 0.0) if len(self.saves) > 1 else Host(0.0), "host", CHECKPOINT, "barrier")
        lanes.put(MAIN, Item(Segment((wait,)), (CHECKPOINT, step), tuple(held), step))

    def _copy(
        self, lanes: ProgramBuilder, way: Direction, works: Sequence[Copy], needs: tuple[Need, ...], step: int
    ) -> list[Need]:  # fmt: skip
        """Both parts, one after the other; empty where the stage saves nothing."""
        ops = [
            Op(work, way, CHECKPOINT, f"{_NAMES[work.direction]} {part}", lane=way)
            for part, work in zip(_PARTS, works, strict=True)
            if work.size
        ]
        if not ops:
            return []
        lanes.put(way, Item(Segment(tuple(ops)), (CHECKPOINT, way, step), needs, step))
        return [Need(lanes.stage, (CHECKPOINT, way, step))]

    @property
    def uneven(self) -> bool:
        """Do ranks of a stage save different things?"""
        return len(set(self.saves)) > 1

    def colour(self, rank: int) -> Hashable:
        """Equal for ranks of a stage that save alike."""
        return self.saves[rank]

    def program(self, rank: int, program: StageProgram) -> StageProgram:
        """A stage's program as a rank has it: what it does not save takes no time and moves nothing."""
        spared = [part for part, saves in zip(_PARTS, self.saves[rank], strict=True) if not saves]
        if not spared:
            return program
        lanes = dict(program.lanes)
        for way in ("d2h", STORAGE):
            lanes[way] = [self._without(item, spared) for item in lanes.get(way, ())]
        return StageProgram(program.stage, {lane: items for lane, items in lanes.items() if items})

    def _without(self, item: Item, parts: Sequence[str]) -> Item:
        if item.segment.ops[0].kind != CHECKPOINT:
            return item

        def spare(op: Op) -> Copy | Host:
            assert isinstance(op.work, Copy)
            return Host(0.0) if op.name.split()[1] in parts else op.work

        return item._replace(segment=item.segment.with_works(spare))


def rate_of(size: float, seconds: float) -> float:
    """B/s at which so many bytes take so long; no bound where they take no time."""
    return size / seconds if seconds > 0 else math.inf
