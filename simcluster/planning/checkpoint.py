"""Ops of a checkpoint in a step: copies to host memory, the write to storage, and the barrier at the end.

A *snapshot* stops training until every rank has its part in its host's memory; the write to storage then continues,
overlapped with the next step, on the NICs that gradients use, too. A *blocking* checkpoint stops training until the
write is over. A rank writes its shard, and its part of what it shares with replicas (``SimulatedCheckpoint``). What
peers keep in their memory is written to them as to storage. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from simcluster.planning.ops import Dependency, Direction, HostWork, Op, Segment, StageProgram, WorkItem
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.work_kinds import Copy, FixedCollective

CHECKPOINT = "checkpoint"
STORAGE: Direction = "storage"
_PARTS = ("common", "experts")
_NAMES = {"d2h": "snapshot", STORAGE: "write", "peers": "copy"}


@dataclass(frozen=True, slots=True)
class SimulatedCheckpoint:
    """Bytes that the ranks of each stage save in a simulated checkpoint, the step of the checkpoint, and its method.

    ``sizes[stage]`` are bytes of common parameters and of experts, for a rank that saves any; ``saved_by_rank[rank]``
    states which of the two it does. The copy to the host takes ``copy_seconds`` s (-1: the time on its links), training
    stops for ``stall_seconds`` s if that is longer; the write, of the ``written_share`` part of the bytes, has at most
    ``rate_limits[stage]`` B/s per rank, or takes ``write_seconds`` s where it uses no link of the job. ``blocking``:
    training waits for the write, which no snapshot precedes. ``destination`` is its destination.
    """

    after_step: int
    blocking: bool
    sizes: tuple[tuple[float, float], ...]
    saved_by_rank: tuple[tuple[bool, bool], ...]
    rate_limits: tuple[float, ...]
    written_share: float = 1.0
    copy_seconds: float = -1.0
    stall_seconds: float = 0.0
    write_seconds: float = -1.0
    destination: Direction = STORAGE

    def add_checkpoint(self, lanes: ProgramBuilder, step: int) -> None:
        """Add a stage's checkpoint ops at the end of ``step``, if the checkpoint is taken after that step."""
        if step != self.after_step:
            return
        stage = lanes.stage
        done = lanes.main_lane_end()
        held: list[Dependency] = []
        if self.stall_seconds:
            key = (CHECKPOINT, "stall", step)
            save = Op(HostWork(self.stall_seconds), "host", CHECKPOINT, "save", lane=CHECKPOINT)
            lanes.append_op(save, key, done, step)
            held.append(Dependency(stage, key))
        sizes, bound = self.sizes[stage], self.rate_limits[stage]
        if not self.blocking:
            copies = [Copy("d2h", size, self.copy_seconds) for size in sizes]
            held += self._add_copies(lanes, "d2h", copies, done, step)
        writes = [Copy(self.destination, self.written_share * size, self.write_seconds, bound) for size in sizes]
        written = self._add_copies(lanes, STORAGE, writes, done if self.blocking else tuple(held), step)
        held += written if self.blocking else []
        work = FixedCollective("world", 0.0) if len(self.saved_by_rank) > 1 else HostWork(0.0)
        lanes.append_op(Op(work, "host", CHECKPOINT, "barrier"), (CHECKPOINT, step), tuple(held), step)

    def _add_copies(
        self, lanes: ProgramBuilder, way: Direction, works: Sequence[Copy], needs: tuple[Dependency, ...], step: int
    ) -> list[Dependency]:  # fmt: skip
        ops = [
            Op(work, way, CHECKPOINT, f"{_NAMES[work.direction]} {part}", lane=way)
            for part, work in zip(_PARTS, works, strict=True)
            if work.size
        ]
        if not ops:
            return []
        lanes.append_item(way, WorkItem(Segment(tuple(ops)), (CHECKPOINT, way, step), needs, step))
        return [Dependency(lanes.stage, (CHECKPOINT, way, step))]

    @property
    def is_uneven(self) -> bool:
        """Whether ranks of a stage save different parts of the checkpoint."""
        return len(set(self.saved_by_rank)) > 1

    def symmetry_key(self, rank: int) -> Hashable:
        """Return a key that is equal for two ranks of a stage if both save the same parts of the checkpoint."""
        return self.saved_by_rank[rank]

    def change_program(self, rank: int, program: StageProgram) -> StageProgram:
        """Return the stage's program for one rank; checkpoint parts that other ranks save take no time."""
        spared = [part for part, saves in zip(_PARTS, self.saved_by_rank[rank], strict=True) if not saves]
        if not spared:
            return program
        lanes = dict(program.lanes)
        for way in ("d2h", STORAGE):
            lanes[way] = [self._drop_parts(item, spared) for item in lanes.get(way, ())]
        return StageProgram(program.stage, {lane: items for lane, items in lanes.items() if items})

    def _drop_parts(self, item: WorkItem, parts: Sequence[str]) -> WorkItem:
        if item.segment.ops[0].kind != CHECKPOINT:
            return item

        def spare(op: Op) -> Copy | HostWork:
            assert isinstance(op.work, Copy)
            return HostWork(0.0) if op.name.split()[1] in parts else op.work

        return item._replace(segment=item.segment.with_replaced_works(spare))


def transfer_rate(size: float, seconds: float) -> float:
    """Return the rate (B/s) that moves ``size`` bytes in ``seconds``; infinite if ``seconds`` is 0."""
    return size / seconds if seconds > 0 else math.inf
