"""Replicas with jitter of every op of every rank, other GPUs, and documents: the same numbers whatever else is changed.

What an op draws depends on the seed, the fault's stream, what the op is (kind, layer, microbatch, step), the rank's
place in its stage and the replica: not on the schedule, the cut of the model, the number of replicas, or what others
draw.  Two scenarios that are compared so share all the numbers that mean the same in both (common random numbers), and
their difference has far less noise than either.  Pure.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.engine.stage_sweep import Duration
from simcluster.faults import Jitter
from simcluster.faults.draws import QuickStreams
from simcluster.planning.ops import Item, Op, Work

BLOCK = 50
"""Replicas that are drawn together, the last ones as many as are asked for: more make fewer, longer arrays; these fit a
cache with the ranks of a stage."""


@dataclass(frozen=True, slots=True)
class Documents:
    """What the core attention of microbatches takes, 1 being one document to a sequence: in each replica of a block
    ``loads[replica, step, dp rank, microbatch]``, and where the step was planned, ``planned[step]``."""

    loads: Floats
    planned: Floats


def seed_of(seed: int, replica: int) -> int:
    """Return the seed of a replica."""
    digest = hashlib.blake2b(repr((seed, "replica", replica)).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little")


class Chance:
    """What ops take in one block of so many replicas, the first of those that a whole one has.

    ``slowdowns`` multiply all computation [replica, rank], if there are any; ``jitters`` come each with the ranks that
    it is on; ``ops[stage][number]`` and ``stage_ranks[stage][place]`` are a sweep's; ``together`` neighbours in
    ``stage_ranks`` are a worker: the tp and cp ranks of a replica's stage.
    """

    def __init__(
        self,
        jitters: Sequence[tuple[Jitter, Sequence[int]]],
        ops: Sequence[Sequence[tuple[Item, Op]]],
        stage_ranks: Sequence[Ints],
        *,
        together: int,
        seed: int,
        block: int,
        replicas: int = BLOCK,
        documents: Documents | None = None,
        slowdowns: Floats | None = None,
    ) -> None:
        self._seed, self._block, self._together, self._replicas = seed, block, together, replicas
        self._slower = None if slowdowns is None else [slowdowns[:, ranks] for ranks in stage_ranks]
        self._documents = documents
        self._ops = ops
        self._names = [_names(stage) for stage in ops]
        self._firsts = [_firsts(stage) for stage in ops]
        self._jitters = [(fault, [np.isin(ranks, chosen) for ranks in stage_ranks]) for fault, chosen in jitters]
        self._places = [len(ranks) for ranks in stage_ranks]
        self._streams = QuickStreams()

    def seconds(self, stage: int, number: int, planned: Floats) -> Duration:
        """Return the durations [replica of the block, place] of an op with these ``planned`` seconds [place]."""
        item, op = self._ops[stage][number]
        if op.work.sensitivity is None:
            return planned
        factors, more = [], None
        if self._documents and op.work.attention and item.microbatch >= 0:
            factors.append(self._uneven(item, op.work))
        for fault, places in self._jitters:
            chosen = places[stage]
            if not chosen.any():
                continue
            drawn = self._draw(fault, stage, number)
            if fault.adds is not None:
                added = np.where(chosen, drawn * fault.adds, 0.0)
                more = added if more is None else more + added
            else:
                factors.append(drawn if chosen.all() else np.where(chosen, drawn, 1.0))
        slower = [] if self._slower is None else [self._slower[stage]]
        if more is None and len(planned) == len(factors + slower) == 1:
            return float(planned[0]), (factors + slower)[0]
        found = math.prod(factors, start=planned)
        return math.prod(slower, start=found if more is None else found + more)

    def _uneven(self, item: Item, work: Work) -> Floats:
        """What multiplies the planned seconds of an op, as its microbatch has other documents."""
        assert self._documents is not None
        planned = self._documents.planned[item.step]
        more = self._documents.loads[:, item.step, :, item.microbatch] - planned
        seconds = work.seconds + (planned - 1.0) * work.attention
        return np.repeat(1.0 + more * (work.attention / seconds), self._together, axis=1)

    def _draw(self, fault: Jitter, stage: int, number: int) -> Floats:
        """A draw for every replica and place of a stage, whether the fault is on it or not."""
        if fault.per == "step":
            name: object = (stage, self._ops[stage][number][0].step)
        else:
            name = self._names[stage][number if fault.per == "kernel" else self._firsts[stage][number]]
        generator = self._streams(self._seed, self._block, fault.seed, name)
        size = self._together if fault.shared_by == "worker" else 1
        count = self._places[stage] // size
        drawn = fault.factor.draw(generator, self._replicas * count).reshape(self._replicas, count)
        return drawn if size == 1 else np.repeat(drawn, size, axis=1)


def _names(ops: Sequence[tuple[Item, Op]]) -> list[tuple[object, ...]]:
    """What each op is, whichever stage has it and in whatever order; alike ones are counted."""
    seen: dict[tuple[object, ...], int] = {}
    names: list[tuple[object, ...]] = []
    for item, op in ops:
        name = (item.step, item.microbatch, op.kind, op.name, op.layer)
        seen[name] = seen.get(name, -1) + 1
        names.append((*name, seen[name]))
    return names


def _firsts(ops: Sequence[tuple[Item, Op]]) -> list[int]:
    """The number of the first op of each op's item."""
    firsts: list[int] = []
    for number, (item, _) in enumerate(ops):
        same = number > 0 and ops[number - 1][0] is item
        firsts.append(firsts[-1] if same else number)
    return firsts
