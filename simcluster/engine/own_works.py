"""The works of a stage's ops on each of its ranks, where faults make these differ, in columns over ranks.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.planning.ops import EXPERTS, MemoryChange, Op, StageProgram

OwnMemory = tuple[tuple[str, Floats, Floats], ...]
"""Changes of memory with an op: the pool, and the bytes that come or go as it starts and as it ends [place]."""


@dataclass(frozen=True)
class OwnWorks:
    """The works of a stage's ops on each of its ranks: ``seconds`` [op, place] of what a rank does by itself.

    By the number of an op, ``loads`` [place] of what it does with others, equal ones one object, and its ``memory``,
    where tokens that choose their experts make them others than the stage's.
    """

    seconds: Floats
    loads: dict[int, Floats] = field(default_factory=dict)
    memory: dict[int, OwnMemory] = field(default_factory=dict)

    @classmethod
    def of_ranks(cls, stage: StageProgram, own: Callable[[int], StageProgram], ranks: Sequence[int]) -> OwnWorks:
        """From every rank's own program, which has the ops of the stage's with other works and memory."""
        ops = _ops(stage)
        mixture = any(op.name == EXPERTS for op in ops)
        moving = [number for number, op in enumerate(ops) if mixture and op.work.axis]
        routed = [number for number, op in enumerate(ops) if mixture and op.routed]
        seconds, loads, memory = [], [], []
        for rank in ranks:
            program = own(rank)
            seconds.append(_seconds(program))
            if mixture:
                its = _ops(program)
                loads.append([its[number].work.load for number in moving])
                memory.append([its[number].memory for number in routed])
        equal: dict[bytes, Floats] = {}
        of_moving = zip(moving, np.array(loads).T.copy(), strict=False)
        return cls(
            np.stack(seconds, axis=1),
            {
                number: equal.setdefault(load.tobytes(), load)
                for number, load in of_moving
                if (load != ops[number].work.load).any()
            },
            {
                number: _in_columns(changes)
                for number, changes in zip(routed, zip(*memory, strict=True), strict=False)
                if any(each != ops[number].memory for each in changes)
            },
        )


def _ops(program: StageProgram) -> list[Op]:
    return [op for items in program.lanes.values() for item in items for op in item.segment.ops]


def _seconds(program: StageProgram) -> Floats:
    known: dict[int, list[float]] = {}
    found: list[float] = []
    for items in program.lanes.values():
        for item in items:
            segment = item.segment
            if id(segment) not in known:
                known[id(segment)] = [op.work.seconds for op in segment.ops]
            found += known[id(segment)]
    return np.array(found)


def _in_columns(changes: Sequence[tuple[MemoryChange, ...]]) -> OwnMemory:
    """Changes of memory of all ranks, which come in one order."""
    pools = [change.pool for change in changes[0]]
    starts, ends = (np.array([[each[at] for each in own] for own in changes]).T for at in (1, 2))
    return tuple(zip(pools, starts, ends, strict=True))
